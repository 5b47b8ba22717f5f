"""Fields that a call gives beside its input, or in its place."""

from __future__ import annotations

import pytest

import vlm
from vlm.errors import InputError

TEXT = "translate English to German: twenty-one"


@pytest.fixture(scope="module")
def model():
    with vlm.load("mini-t5", device="cpu") as pipeline:
        yield pipeline


def test_fields_stand_in_an_input_beside_it_or_in_its_place(model):
    whole = model.generate({"text": TEXT, "truncate": 4})
    assert whole.token_ids != model.generate(TEXT).token_ids
    for output in (
        model.generate(TEXT, truncate=4),
        model.generate({"text": TEXT}, truncate=4),
        model.generate(text=TEXT, truncate=4),
        *model.generate([TEXT, {"text": TEXT}], truncate=4),
    ):
        assert output.token_ids == whole.token_ids
    assert "".join(model.stream(TEXT, truncate=4)) == whole.text
    encoded = model.encode({"text": TEXT, "truncate": 4}).last_hidden_state
    assert model.encode(TEXT, truncate=4).last_hidden_state.equal(encoded)


@pytest.mark.parametrize(
    "call",
    [
        lambda m: m.generate(TEXT, text="b"),
        lambda m: m.generate([TEXT], text="b"),
        lambda m: next(m.stream({"text": TEXT}, text="b")),
        lambda m: m.encode(TEXT, text="b"),
        lambda m: m.encode([{"text": TEXT}], text="b"),
    ],
)
def test_a_field_is_given_once(call, model):
    with pytest.raises(InputError, match=r"^text was given in the input and beside it; give it once\.$"):
        call(model)
