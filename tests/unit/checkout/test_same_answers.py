"""benchmarks/same_answers.py: how far apart the answers of two engines are."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

from tests.checkout import ROOT
from tests.kits.models.engines import engine_dir, rebuilt
from tests.kits.models.families import MODELS

SCRIPT = ROOT / "benchmarks" / "same_answers.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("same_answers", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tokens_count_up_to_the_first_that_is_another(script):
    one = [(torch.tensor([3.0, 4.0]), [1, 2, 3]), (torch.tensor([1.0, 0.0]), [5, 6, 7])]
    other = [(torch.tensor([3.0, 4.5]), [1, 9, 3]), (torch.tensor([1.0, 0.0]), [5, 6, 7])]
    found = script.compared(other, one)
    assert found["logits_apart"] == pytest.approx(0.1) and found["equal_tokens"] == [1, script.TOKENS]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llava", "t5"])
def test_an_engine_that_ranks_split_gives_the_same_answers(script, kind, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "LENGTHS", (9, 4))
    monkeypatch.setattr(script, "TOKENS", 6)
    engine = engine_dir(MODELS[kind](), tmp_path, max_batch_size=4)
    split = rebuilt(engine, max_batch_size=4, tp_size=2)
    script.main([str(engine.path), str(split.path), "--device", "cpu", "--json", str(tmp_path / "same.json")])
    [found] = json.loads((tmp_path / "same.json").read_text())["others"].values()
    assert found["logits_apart"] < 1e-4 and found["equal_tokens"] == [6, 6]
    assert split.path.name in capsys.readouterr().out
