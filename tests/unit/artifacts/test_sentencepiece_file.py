"""Tokenizers made of SentencePiece files against the library that wrote them."""

from __future__ import annotations

import sys

import pytest
from tokenizers import Tokenizer as FastTokenizer

from tests.kits.publications.nemo_kit import sentencepiece_file
from vlm.convert.sentencepiece_file import read_model, tokenizer_of
from vlm.errors import CheckpointError
from vlm.processing.text.tokenization import Tokenizer

pieces = pytest.importorskip("sentencepiece", reason="sentencepiece writes the files of these tests")
TEXTS = [
    "the house is small",
    "The  old boat , is in   the harbour. ",
    "  small",
    "a\tb\nhouse",
    "ﬁne ½ houses",
    "xyz the",
]
CODE = ["def", "<extra_id_0>", "▁▁▁", "house.."]
KINDS = {
    "unigram": {},
    "bpe": {},
    "unigram, bytes for what it does not know": {"byte_fallback": True, "vocab_size": 330},
    "bpe, bytes for what it does not know": {"byte_fallback": True, "vocab_size": 330},
    "unigram, pieces of the user's": {"user_defined_symbols": CODE, "vocab_size": 62},
    "bpe, the text as it is, with pieces of the user's": {
        "user_defined_symbols": CODE, "vocab_size": 62, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False},
    "bpe, no blank before a text": {"add_dummy_prefix": False, "split_by_whitespace": False},
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_the_same_ids_and_texts(name, tmp_path):
    file = sentencepiece_file(tmp_path, name.split(",")[0], **KINDS[name])
    theirs = pieces.SentencePieceProcessor(model_file=str(file))
    ours = Tokenizer(FastTokenizer.from_str(tokenizer_of(read_model(file)).to_str()))
    texts = [*TEXTS, "def house..:\n      the <extra_id_0>s", "   def"] if "user" in name else TEXTS
    for text in texts:
        ids = theirs.encode(text)
        assert ours.encode_source(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text
    assert (theirs.unk_id() in theirs.encode("日本")) == ("bytes" not in name)


def test_what_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "damaged.model").write_bytes(b"\xff\x00 no model")
    (tmp_path / "empty.model").write_bytes(b"")
    words = sentencepiece_file(tmp_path, "word", "words", vocab_size=8, hard_vocab_limit=False)
    behind = sentencepiece_file(tmp_path, name="behind", treat_whitespace_as_suffix=True)
    for path, says in (
        (tmp_path / "damaged.model", "is no SentencePiece model, or damaged"), (tmp_path / "empty.model", "no pieces"),
        (words, "is of a kind that is not supported"), (behind, "is of a kind that is not supported"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=says):
            read_model(path)
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    with pytest.raises(CheckpointError, match="pip install protobuf"):
        read_model(words)
