"""What a job of `vlm quantize` takes before it runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vlm.errors import InputError
from vlm_app.quantize.job import QuantizeJob

PARTS: dict[str, Any] = dict.fromkeys(("config", "inputs", "options", "framing", "progress"), SimpleNamespace())


@pytest.mark.parametrize(("places", "setting"), [({"out": ""}, "out"), ({"out": "out", "export": ""}, "export")])
def test_an_empty_path_is_refused(places, setting):
    with pytest.raises(InputError) as error:
        QuantizeJob(model="mini-t5", **places, **PARTS)
    assert str(error.value) == f"{setting} is empty; name a file or a folder (. is this one)."


def test_a_path_may_be_a_string():
    places = {"out": "out", "export": "export"}
    job = QuantizeJob(model="mini-t5", **places, **PARTS)
    assert {name: getattr(job, name) for name in places} == {name: Path(path) for name, path in places.items()}
