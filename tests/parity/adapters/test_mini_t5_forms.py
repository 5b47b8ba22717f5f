"""The packaged adapter: mini-t5 fills in forms with it, and not without; PEFT's tokens; both in one batch."""

from __future__ import annotations

import json
import random

import pytest
import torch

import vlm
from training.t5 import forms
from vlm.packaged import ADAPTER, adapter_folder, packaged

NAME = "mini-t5-forms"


@pytest.fixture(scope="module")
def examples():
    return forms.held_out(random.Random(7), 12)


@pytest.fixture(scope="module")
def model():
    return vlm.load("mini-t5", device="cpu", max_batch_size=8, lora={"forms": NAME})


def test_the_base_does_not_solve_it_and_the_adapter_does(model, examples):
    """In one batch, every other notice with the adapter; then the other way round."""
    adapted, plain = [], []
    for first in (0, 1):
        inputs = [{"text": e.source, **({"lora": "forms"} if i % 2 == first else {})} for i, e in enumerate(examples)]
        outputs = model.generate(inputs, max_new_tokens=128)
        adapted += [(e, out.text) for i, (e, out) in enumerate(zip(examples, outputs, strict=True)) if i % 2 == first]
        plain += [(e, out.text) for i, (e, out) in enumerate(zip(examples, outputs, strict=True)) if i % 2 != first]
    assert len(adapted) == len(plain) == len(examples)
    assert not any(text == e.target for e, text in plain)
    assert sum(json.loads(text) == json.loads(e.target) for e, text in adapted) >= 0.75 * len(examples)


def test_tokens_are_those_of_peft(model, examples):
    peft = pytest.importorskip("peft", reason="PEFT is what this is compared with")
    from transformers import T5ForConditionalGeneration

    base = T5ForConditionalGeneration.from_pretrained(packaged("config.json")["mini-t5"], dtype=torch.float32)
    adapted = peft.PeftModel.from_pretrained(base, packaged(ADAPTER)[NAME]).eval()
    found = model.generate([{"text": e.source, "lora": "forms"} for e in examples[:4]], max_new_tokens=128)
    for example, out in zip(examples, found, strict=False):
        ids = torch.tensor([model.tokenizer.encode_source(example.source)])
        with torch.no_grad():
            want = adapted.generate(input_ids=ids, do_sample=False, num_beams=1, max_length=129)[0, 1:]
        assert out.token_ids == want.tolist()


def test_a_folder_here_comes_before_the_packaged_name(tmp_path, monkeypatch):
    assert adapter_folder(NAME) == packaged(ADAPTER)[NAME] and NAME not in packaged("config.json")
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir()
    assert adapter_folder(NAME).resolve() == tmp_path / NAME
