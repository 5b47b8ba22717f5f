"""Folders with a vocabulary and merges, and no tokenizer.json: texts are read as by the class of Hugging Face's that
the settings name, or else the model's type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from vlm.convert.tokenizer_files import completed_tokenizer, make_tokenizer
from vlm.processing.text.tokenization import Tokenizer

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
PIECES = ["he", "Ġt", "Ġthe", "20", "<mask>", "<|endoftext|>"]
VOCABULARY = {token: i for i, token in enumerate([*SPECIAL, *ALPHABET, *PIECES])}
MERGES = ["#version: 0.2", "h e", "Ġ t", "Ġt he", "2 0", ""]
TEXTS = ["the cat the 2024", "  the  ", "a </s> b <mask> c", "x<|endoftext|>y", "日本 é e\u0301", "the<s>"]
OPT = {"unk_token": "</s>", "bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>", "add_bos_token": True}
TROCR = {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "vit"}, "decoder": {"model_type": "trocr"}}
# the model's configuration, and its tokenizer's
FOLDERS = {
    "gpt2": ({"model_type": "gpt2"}, {}),  # of a vocabulary that has <s> and </s>, which no text gets
    "gpt2, a blank before texts": (
        {"model_type": "gpt2"}, {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}),
    "gpt2, a first token": (
        {"model_type": "gpt2"}, {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "<s>"}),
    "opt": ({"model_type": "opt"}, {"tokenizer_class": "GPT2Tokenizer", **OPT}),
    "qwen2": ({"model_type": "qwen2"}, {}),  # splits numbers into digits
    "qwen2 by its class": ({"model_type": "llama"}, {"tokenizer_class": "Qwen2Tokenizer"}),
    "bart": ({"model_type": "bart"}, {}),
    "bart, a blank before texts": (
        {"model_type": "bart"}, {"tokenizer_class": "BartTokenizer", "add_prefix_space": True}),
    "trocr": (TROCR, {"tokenizer_class": "RobertaTokenizer"}),
}  # fmt: skip


def write(folder: Path, config: dict, settings: dict) -> None:
    contents = {"config.json": config, "tokenizer_config.json": settings, "vocab.json": VOCABULARY}
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "merges.txt").write_text("\n".join(MERGES))


def ours(folder: Path) -> Tokenizer:
    """Returns the tokenizer that conversion makes of a folder."""
    file = folder / "tokenizer.json"
    file.write_text(make_tokenizer(folder)["tokenizer.json"])
    file.write_text(completed_tokenizer(file, (), folder) or file.read_text())
    tokenizer = Tokenizer.from_dir(folder)
    assert tokenizer is not None
    return tokenizer


@pytest.mark.parametrize(("config", "settings"), FOLDERS.values(), ids=FOLDERS)
def test_texts_are_hugging_faces(config, settings, tmp_path):
    write(tmp_path, config, settings)
    theirs: Any = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = ours(tmp_path)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert tokenizer.encode_source(text) == ids
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_model_that_names_no_class_and_whose_type_has_none(tmp_path):
    """As older TrOCRs are: they read and write as RoBERTa."""
    write(tmp_path, TROCR, {})
    with pytest.raises(ValueError, match="tokenizer"):
        AutoTokenizer.from_pretrained(tmp_path)
    assert ours(tmp_path).encode_source("the") == [0, VOCABULARY["t"], VOCABULARY["he"], 2]
