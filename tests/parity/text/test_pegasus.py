"""PEGASUS with texts against Hugging Face: ids of its own tokenizer, positions that are saved or not, its own beams."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PegasusForConditionalGeneration, PegasusTokenizer

import vlm
from tests.kits.cli_kit import call
from tests.kits.models import tiny
from tests.kits.publications.nemo_kit import sentencepiece_file

pytest.importorskip("sentencepiece")
TEXTS = ["the house is small", "The  old boat , is in   the harbour. ", "xyz 日 new", "日本", "a </s> boat",
         "ﬁne ½ ö", "the\nhouse", "<mask_1> the <unk_5> boat"]  # fmt: skip
NEW = 6
PUBLISHED = {"num_beams": 8, "length_penalty": 0.6, "max_length": 7}  # as of google/pegasus-xsum, but shorter


def folder_of(model, folder):
    """Writes a model with the SentencePiece file alone, as it is published; returns Hugging Face's tokenizer."""
    sentencepiece_file(folder, name="spiece", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PegasusTokenizer"}))
    for name, value in PUBLISHED.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    return PegasusTokenizer.from_pretrained(folder)


def loaded(folder):
    return vlm.load(folder, device="cpu", cache_dir=folder / "cache", max_batch_size=8, max_seq_len=32)


@pytest.mark.parametrize("is_fast", [False, True], ids=["spiece.model", "tokenizer.json"])
def test_texts_and_the_settings_that_are_published(is_fast, tmp_path):
    model = tiny.pegasus(vocab_size=140, logits_bias=True)
    hf = folder_of(model, tmp_path)
    if is_fast:
        hf.save_pretrained(tmp_path)
        (tmp_path / "spiece.model").unlink()
    pipe = loaded(tmp_path)
    found = pipe.generate([{"text": text} for text in TEXTS])
    for text, out in zip(TEXTS, found, strict=True):
        ids = hf(text)["input_ids"]
        assert pipe.tokenizer.encode_source(text) == ids, text
        assert out.token_ids == tiny.hf_text(model, ids, NEW, **PUBLISHED | {"max_length": None})
        assert out.text == hf.decode(out.token_ids, skip_special_tokens=True)
    assert hf.convert_tokens_to_ids(["<unk>", "<unk_102>"]) == [105, 104]
    done = call("summarize", TEXTS[0], "--model", tmp_path, "--device", "cpu", "--max-new-tokens", NEW)
    assert done.stdout == f"{found[0].text}\n", "nothing stands before the text"


@pytest.mark.parametrize("change", [None, "rounded"], ids=["computed", "stored"])
def test_positions_are_sines_or_as_saved(change, tmp_path):
    folder_of(tiny.pegasus(vocab_size=140), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tables = [name for name in tensors if name.endswith("embed_positions.weight")]
    assert len(tables) == 2
    for name in tables:
        table = tensors.pop(name)
        if change:
            tensors[name] = (table * 4).round() / 4
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model = PegasusForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float32).eval()
    texts = tiny.texts(model, (20, 3, 31), seed=4)
    found = loaded(tmp_path).generate([{"encoder_input_ids": text} for text in texts], max_new_tokens=NEW)
    for text, out in zip(texts, found, strict=True):
        assert out.token_ids == tiny.hf_text(model, text, NEW, num_beams=8, length_penalty=0.6)
