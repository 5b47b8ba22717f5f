"""BPE codes and dictionaries of FairSeq, by examples worked out by hand."""

from __future__ import annotations

import pytest

from llm_engines.converters.fairseq_tokenizer import SPECIAL, read_codes, tokenizer_files
from llm_engines.families.fairseq import tokenizer_rules
from vlm.processing.text.tokenization import Tokenizer

# merges give lo, low</w>, er</w>, ne, new, st</w>, est</w>, low
CODES = "l o\nlo w</w>\ne r</w>\nn e\nne w\ns t</w>\ne st</w>\nlo w\n"
ENTRIES = ["low", "low@@", "er", "new@@", "est", "n@@", "e@@", "w", "o@@", "l@@", "low#"]


def tokenizer(tmp_path, codes: str | None = "#version: 0.2\n" + CODES, target=None) -> Tokenizer:
    source = [*SPECIAL, *ENTRIES]
    if codes is not None:
        (tmp_path / "bpecodes").write_text(codes)
    (tmp_path / "made").mkdir()
    tokenizer_files(tmp_path, source, [*SPECIAL, *target] if target else source, out=tmp_path / "made")
    return Tokenizer.from_dir(tmp_path / "made", tokenizer_rules)


@pytest.mark.parametrize(
    "codes", ["#version: 0.2\n" + CODES, CODES.replace("\n", " 77\n")], ids=["subword-nmt", "fastBPE"]
)
def test_words_become_the_pieces_that_subword_nmt_makes(tmp_path, codes):
    found = tokenizer(tmp_path, codes)
    ids = {entry: i for i, entry in enumerate([*SPECIAL, *ENTRIES])}
    for text, pieces in (
        ("low", ["low"]),
        ("lower", ["low@@", "er"]),
        ("newest low", ["new@@", "est", "low"]),
        ("new", ["n@@", "e@@", "w"]),  # ne and w</w>: `ne@@` is in no dictionary
    ):
        want = [ids[p] for p in pieces] if text != "new" else [3, ids["w"]]
        assert found.encode_source(text) == [*want, 2], text
        if text != "new":
            assert found.decode([*want, 2]) == text


def test_what_no_dictionary_holds_is_unknown(tmp_path):
    found = tokenizer(tmp_path)
    assert found.encode("lox") == [3, 3]  # lo@@ is but a step of a merge, x was never seen
    assert found.encode("low 日本 low") == [4, 3, 3, 4]
    assert found.encode("low <unk>")[-1] == 3


def test_outputs_with_a_dictionary_of_their_own(tmp_path):
    found = tokenizer(tmp_path, target=["le", "pe@@", "tit", "chat@@"])
    assert found.encode("lower") == [5, 6]
    assert found.decode([2, 4, 5, 6, 2]) == "le petit"
    assert found.decode([4, 7]) == "le chat"


def test_words_without_codes(tmp_path):
    found = tokenizer(tmp_path, codes=None)
    assert found.encode_source("est low@@ nothing") == [8, 5, 3, 2]
    assert found.decode([8, 4, 2]) == "est low"


def test_merges_in_their_order_and_once(tmp_path):
    (tmp_path / "code").write_text("a b 9\nab c</w> 3\na b 1\n")
    assert read_codes(tmp_path / "code") == [("a", "b"), ("ab", "c</w>")]
