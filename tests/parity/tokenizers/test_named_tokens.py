"""Tokens that a folder names beside its tokenizer.json: texts are read and written as by Hugging Face's tokenizers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import AutoTokenizer

import vlm
from tests.kits.models import tiny
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError
from vlm.limits import MAX_ADDED_TOKENS
from vlm.processing.text.tokenization import Tokenizer

SPECIAL = ["<unk>", "<s>", "</s>", "<pad>"]
VOCABULARY = {t: i for i, t in enumerate([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "Ġt", "Ġthe"])}
MERGES = [("h", "e"), ("Ġ", "t"), ("Ġt", "he")]
NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
TEXTS = ["a <user> the", "<user>the</s> a", "<bot>  <bot>the", "the <s> x ", "a\n<user>\n<bot>"]
USER = {
    "content": "<user>",
    "lstrip": True,
    "rstrip": False,
    "normalized": False,
    "single_word": False,
    "special": True,
}
FILES = {
    "nothing": ({}, False),
    "special tokens of the vocabulary": ({"tokenizer_config.json": NAMES}, True),
    "a special token of its own": ({"tokenizer_config.json": {**NAMES, "eos_token": "<user>"}}, True),
    "one of the model's": ({"tokenizer_config.json": {"image_token": "<user>"}}, True),
    "by their ids": (
        {"tokenizer_config.json": {"added_tokens_decoder": {
            "900": {**USER, "content": "<bot>", "special": False, "lstrip": False}, "261": USER}}}, True),
    "by their ids, one by a name": (
        {"tokenizer_config.json": {"pad_token": "<user>", "added_tokens_decoder": {"7": {**USER, "special": False}}}},
        True),
    "extra ones": ({"tokenizer_config.json": {"extra_special_tokens": ["<user>", "<bot>"]}}, True),
    "extra ones by names": ({"tokenizer_config.json": {"extra_special_tokens": {"user_token": "<user>"}}}, True),
    "additional ones": ({"tokenizer_config.json": {"additional_special_tokens": ["<bot>"]}}, True),
    "none that texts hold": ({"tokenizer_config.json": {**NAMES, "split_special_tokens": True}}, False),
    "a blank before texts": (
        {"tokenizer_config.json": {**NAMES, "tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}}, True),
    "a blank that the class does not read": ({"tokenizer_config.json": {"add_prefix_space": True}}, False),
    "older": (
        {"special_tokens_map.json": {**NAMES, "pad_token": {**USER}}, "added_tokens.json": {"<bot>": 264, "<x>": 263}},
        True),
    "older, unread": (
        {"tokenizer_config.json": {"added_tokens_decoder": {}}, "special_tokens_map.json": {"eos_token": "<user>"},
         "added_tokens.json": {"<bot>": 264}}, False),
}  # fmt: skip


def write(folder: Path, files: dict) -> None:
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def as_a_folder(folder: Path, files: dict) -> None:
    """Writes a small GPT-2 with a tokenizer.json that adds no tokens, and what is beside it."""
    tiny.gpt2(vocab_size=len(VOCABULARY) + 9).save_pretrained(folder)
    fast = FastTokenizer(models.BPE(VOCABULARY, MERGES))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast.save(str(folder / "tokenizer.json"))
    write(folder, files)
    said = {"tokenizer_class": "PreTrainedTokenizerFast"} | files.get("tokenizer_config.json", {})
    write(folder, {"tokenizer_config.json": said})


@pytest.mark.parametrize(("files", "differs"), FILES.values(), ids=FILES)
def test_a_tokenizer_json_is_completed(files, differs, tmp_path):
    as_a_folder(tmp_path, files)
    convert_folder(tmp_path, tmp_path / "checkpoint")
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), Tokenizer.from_dir(tmp_path / "checkpoint/processor")
    assert ours is not None
    plain = FastTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    changed = 0
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == ids
        changed += ids != plain.encode(text).ids
        for special in (True, False):
            want = theirs.decode(ids, skip_special_tokens=not special)
            assert ours.showing(special_tokens=special).decode(ids) == want
    assert bool(changed) == differs
    assert (ours.bos_token, ours.eos_token) == (theirs.bos_token or "", theirs.eos_token or "")


def test_a_vocabulary_and_merges_of_a_tuned_model(tmp_path):
    """As older releases saved GPT-2s that were given tokens: prompts and outputs with these."""
    model: Any = tiny.gpt2(seed=1, vocab_size=len(VOCABULARY) + 2)
    model.save_pretrained(tmp_path)
    write(tmp_path, {
        "vocab.json": VOCABULARY, "added_tokens.json": {"<user>": len(VOCABULARY), "<bot>": len(VOCABULARY) + 1},
        "special_tokens_map.json": {**NAMES, "pad_token": "<bot>"}, "tokenizer_config.json": {
            "tokenizer_class": "GPT2Tokenizer", "model_max_length": 64}})  # fmt: skip
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in MERGES))
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    pipe = vlm.load(tmp_path, device="cpu", dtype="float32", cache_dir=tmp_path / "cache", max_seq_len=64)
    assert pipe.tokenizer is not None
    texts = ["the <user> a <bot>", "<user><user>the", "a <s> b"]
    for text, out in zip(texts, pipe.generate([{"prompt": text} for text in texts], max_new_tokens=12), strict=True):
        ids = theirs(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            row = model.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=3)[0, ids.shape[1] :].tolist()
        assert out.token_ids == row
        assert out.text == theirs.decode(row, skip_special_tokens=True)
        assert pipe.tokenizer.decode(ids[0].tolist()) == theirs.decode(ids[0], skip_special_tokens=True)


def test_a_token_that_is_no_text_is_refused(tmp_path):
    as_a_folder(
        tmp_path, {"tokenizer_config.json": {"pad_token": "\ud800", "added_tokens_decoder": {"9" * 5000: USER}}}
    )
    with pytest.raises(CheckpointError, match="names a token that is not valid Unicode; fetch the folder again"):
        convert_folder(tmp_path, tmp_path / "checkpoint")


def test_more_tokens_than_any_tokenizer_has_are_refused(tmp_path):
    as_a_folder(tmp_path, {"added_tokens.json": {f"<{i}>": i for i in range(MAX_ADDED_TOKENS + 1)}})
    with pytest.raises(CheckpointError, match="adds 131,073 tokens, the limit is 131,072"):
        convert_folder(tmp_path, tmp_path / "checkpoint")
