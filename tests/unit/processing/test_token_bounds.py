"""A lower bound of tokens refuses what is too long before it is tokenized, and never a text that fits."""

from __future__ import annotations

import functools
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from llm_engines.tokenizers.byte_tokenizer import byte_tokenizer
from vlm.build.locate import packaged_models
from vlm.errors import LimitError
from vlm.limits import CHARACTERS_PER_TOKEN
from vlm.processing.text.token_bounds import TokenBound
from vlm.processing.text.tokenization import Tokenizer

LETTERS = string.ascii_letters + string.digits
WORDS = ["hello", "world", "he", "llo", "the"]


def wordpiece() -> FastTokenizer:
    vocabulary = ["[UNK]", *string.ascii_lowercase, *(f"##{x}" for x in string.ascii_lowercase), "hello", "##llo"]
    fast = FastTokenizer(models.WordPiece({w: i for i, w in enumerate(vocabulary)}, unk_token="[UNK]"))
    fast.normalizer, fast.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    fast.add_special_tokens(["[UNK]"])
    fast.add_tokens([AddedToken("two words", lstrip=True, rstrip=True)])
    return fast


def unigram() -> FastTokenizer:
    """Unknown characters fuse: the capital letters, and all with accents."""
    vocabulary = [
        ("<unk>", 0.0),
        ("▁", -1.0),
        *((x, -4.0) for x in string.ascii_lowercase),
        *((w, -2.0) for w in WORDS),
    ]
    fast = FastTokenizer(models.Unigram(vocabulary, unk_id=0))
    blanks = normalizers.Replace(Regex(" {2,}"), " ")
    fast.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.StripAccents(), blanks])
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    return fast


def byte_fallback() -> FastTokenizer:
    pieces = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", *LETTERS, "he", "ll", "hell"]
    merges = [("h", "e"), ("l", "l"), ("he", "ll")]
    vocabulary = {w: i for i, w in enumerate(pieces)}
    fast = FastTokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True)])
    return fast


def ends_of_words() -> FastTokenizer:
    """Digits are known within words alone, so that each word of them is unknown."""
    pieces = ["<unk>", *LETTERS, *(f"{x}</w>" for x in string.ascii_letters), "he", "he</w>"]
    vocabulary, merges = {w: i for i, w in enumerate(pieces)}, [("h", "e"), ("h", "e</w>")]
    model = models.BPE(vocabulary, merges, unk_token="<unk>", end_of_word_suffix="</w>", fuse_unk=True)
    fast = FastTokenizer(model)
    fast.normalizer, fast.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.WhitespaceSplit()
    return fast


def word_level() -> FastTokenizer:
    fast = FastTokenizer(models.WordLevel({"<unk>": 0, "hello": 1, "a": 2}, "<unk>"))
    fast.pre_tokenizer = pre_tokenizers.Whitespace()
    return fast


MADE = {
    "wordpiece": wordpiece,
    "unigram": unigram,
    "byte fallback": byte_fallback,
    "ends of words": ends_of_words,
    "word level": word_level,
    "bytes": lambda: FastTokenizer.from_str(byte_tokenizer(125)),
    **{
        name: functools.partial(FastTokenizer.from_file, str(folder / "tokenizer.json"))
        for name, folder in packaged_models().items()
    },
}
COUNTING = sorted(MADE.keys() - {"mini-nougat"})  # which knows 100 words of one sign each
PIECES = [
    *WORDS,
    "two words",
    "<mask>",
    "<image>",
    "e\u0301",
    "A",
    "7",
    "\u0301",
    " ",
    "  ",
    "\t\n",
    "\0",
    "中",
    "Ｈ",
    "\u212a",
]
texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=60).map("".join)


@functools.cache
def made(kind: str) -> tuple[FastTokenizer, TokenBound]:
    fast = MADE[kind]()
    return fast, TokenBound.from_tokenizer(fast)


@pytest.mark.parametrize("kind", sorted(MADE))
@settings(max_examples=150, deadline=None, database=None, derandomize=True)
@given(text=texts, times=st.integers(1, 40))
@example("two words", 40)
@example("e\u0301", 40)
@example("A", 300)
@example("7", 300)
def test_no_text_has_fewer_tokens(kind, text, times):
    fast, bound = made(kind)
    text = "".join(x for x in text * times if not "\ud800" <= x <= "\udfff")
    assert bound(text) <= len(fast.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("kind", COUNTING)
def test_a_long_text_is_known_to_be_long(kind):
    fast, bound = made(kind)
    text = "hello world " * 500
    assert bound(text) * 20 >= len(fast.encode(text, add_special_tokens=False).ids)


def test_what_is_dropped_is_not_counted():
    fast = FastTokenizer(models.BPE({x: i for i, x in enumerate(LETTERS)}, []))
    assert TokenBound.from_tokenizer(fast)("abc") == 3
    for dropped in (
        normalizers.Replace(Regex("a+"), ""),
        normalizers.Replace("b", ""),
        normalizers.Replace(Regex("."), ""),
    ):
        fast.normalizer = dropped
        assert TokenBound.from_tokenizer(fast)("abc") == 0
    fast.normalizer = normalizers.Lowercase()
    fast.pre_tokenizer = pre_tokenizers.Split("abc", "removed")
    assert TokenBound.from_tokenizer(fast)("abc") == 0


def test_a_text_is_refused_by_its_size(monkeypatch):
    """Whatever becomes of its characters; nothing is tokenized."""
    tokenizer = Tokenizer(unigram())
    monkeypatch.setattr(tokenizer, "pieces", None)
    tokenizer.check_length(" " * CHARACTERS_PER_TOKEN * 8, 8)
    with pytest.raises(LimitError, match=r"513 characters; of one for 8 tokens.* 512 are read; shorten or split"):
        tokenizer.check_length(" " * (CHARACTERS_PER_TOKEN * 8 + 1), 8)
    with pytest.raises(LimitError, match="has at least 40 tokens, the engine was built for 8; shorten or split it"):
        tokenizer.check_length("hello" * 40, 8)
    tokenizer.check_length("hello" * 20, 8)  # it is soon told how many these are


@pytest.mark.parametrize(("side", "end"), [("right", "ab"), ("left", "cd")])
def test_as_much_is_read_of_a_text_that_is_cut(side, end):
    tokenizer = Tokenizer(unigram(), truncation_side=side)
    assert set(tokenizer.shortened(f"ab{' ' * 10_000}cd", 2).strip()) == set(end)
