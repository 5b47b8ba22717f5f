"""mini-t5, trained weights: Hugging Face's tokens, greedy and by beams, whatever a text is batched with."""

from __future__ import annotations

import json

import pytest
import torch

import vlm
from tests.checkout import ROOT
from tests.kits.models import tiny
from vlm.build.locate import packaged_models
from vlm.errors import InputError

EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    """(text with its task, reference)"""
    pairs = [line.split("\t") for line in (EXAMPLES / "translate.tsv").read_text("utf-8").splitlines()]
    found = [(f"translate English to German: {english}", german) for english, german in pairs[::3]]
    found += [(f"translate German to English: {german}", english) for english, german in pairs[1::3]]
    notices = [json.loads(line) for line in (EXAMPLES / "notices.jsonl").read_text("utf-8").splitlines()]
    return found + [(f"summarize: {notice['text']}", notice["summary"]) for notice in notices[:6]]


@pytest.mark.parametrize("beams", [1, 4])
def test_tokens_equal_hugging_faces(texts, beams, tmp_path_factory):
    from transformers import T5ForConditionalGeneration

    cache = tmp_path_factory.getbasetemp() / "mini-t5-cache"
    pipe = vlm.load("mini-t5", device="cpu", max_batch_size=16, cache_dir=cache)
    found = pipe.generate([{"text": text} for text, _ in texts], num_beams=beams)
    model = T5ForConditionalGeneration.from_pretrained(packaged_models()["mini-t5"], dtype=torch.float32).eval()
    ids, mask = tiny.padded([pipe.tokenizer.encode_source(text) for text, _ in texts], model.config.pad_token_id)
    longest = pipe.llm.limits.max_seq_len
    want = model.generate(ids, attention_mask=mask, num_beams=beams, do_sample=False, max_length=longest)[:, 1:]
    for tokens, out in zip(want.tolist(), found, strict=True):
        assert out.token_ids == tiny.up_to_end(tokens, 1) and out.token_ids[-1] == 1
    exact = sum(out.text == reference for (_, reference), out in zip(texts, found, strict=True))
    assert exact >= 0.9 * len(texts), "the examples are of a language that the model knows"


def test_a_text_that_cannot_be_read_costs_none_of_those_that_are_read_with_it(texts):
    pipe = vlm.load("mini-t5", device="cpu")
    good = [text for text, _ in texts[:3]]
    mixed = [good[0], "half a \ud800", {"text": good[1], "truncate": 4}, {"text": good[2]}, {"text": " "}, 5]
    found = dict(pipe.as_completed(mixed, on_error="yield", max_new_tokens=4))
    assert all(isinstance(found.pop(number), InputError) for number in (1, 4, 5))
    for number, out in found.items():
        assert out.token_ids == pipe.generate(mixed[number], max_new_tokens=4).token_ids
