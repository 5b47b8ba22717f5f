"""The suite finds a registered family, or a published shape of one, that nothing compares with Hugging Face."""

from __future__ import annotations

import pytest

from tests.parity.cases import CASES, families_without_case
from tests.unit.builder import artifact_kit
from vlm.convert.roles import role_configs
from vlm.registry import catalogs


def test_every_family_has_a_parity_case():
    assert families_without_case() == [], "these families need cases in tests/parity, given to `parity`"


def test_no_case_is_of_a_family_that_is_gone():
    families_without_case()
    assert CASES.keys() <= catalogs.families().keys()


def test_a_family_without_a_case_is_named(monkeypatch):
    artifact_kit.install(monkeypatch)
    assert families_without_case() == ["toy"]


@pytest.mark.parametrize(
    ("family", "shape"), [(f.name, shape) for f in catalogs.families().values() for shape in f.architectures]
)
def test_published_shapes_are_their_familys(family, shape):
    spec, config = catalogs.architecture(shape)
    assert spec.name == family
    if config["model_type"] not in ("nemo_gpt", "vila"):  # of converters: no config.json says so
        assert catalogs.match_family(config).name == family
    assert set(role_configs(spec, config)) == set(spec.roles)
