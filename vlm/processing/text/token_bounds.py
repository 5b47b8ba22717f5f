"""How many tokens a text has at least, told from its bytes: what is too long is refused before it is tokenized."""

from __future__ import annotations

import json
import re
import string
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from vlm.errors import LengthError
from vlm.limits import CHARACTERS_PER_TOKEN

SOLID = frozenset(string.ascii_letters + string.digits)
SIGNS = bytes(range(128, 256))  # bytes of characters beyond ASCII
WORD_ENDS = bytes(97 if chr(i) in SOLID else 32 if chr(i) in " \t\n\r" else 0 for i in range(256))
# steps that neither drop a letter or digit nor make one character of two, but for an accent that joins it
KEEP = frozenset(
    "ByteLevel Lowercase Metaspace NFC NFD NFKC NFKD Nmt Precompiled Prepend Strip StripAccents"
    " BertNormalizer BertPreTokenizer Digits Punctuation UnicodeScripts Whitespace WhitespaceSplit".split()
)
SPLIT_WORDS = frozenset(("BertPreTokenizer", "Whitespace", "WhitespaceSplit"))
JOIN_WORDS = frozenset(("Precompiled", "Replace"))
OF_BLANKS = re.compile(r"\{\d*,?\d*\}|\\s")  # in a regular expression, without a letter or digit in the text


@dataclass(frozen=True)
class TokenBound:
    """A lower bound for one tokenizer. It counts ASCII letters and digits, or words that end in one: blanks may
    collapse, signs may vanish, and what is not in the vocabulary may become one unknown token, however long."""

    letters: bytes = b""  # that lie in a known token wherever they stand
    longest: int = 1  # letters in a token
    words: int = 0  # in a token; 0: they are not counted

    @classmethod
    def from_tokenizer(cls, fast: FastTokenizer) -> TokenBound:
        """Returns a bound of 0 for a tokenizer of which nothing is certain."""
        fields = json.loads(fast.to_str())
        steps = [*_steps(fields["normalizer"]), *_steps(fields["pre_tokenizer"])]
        if not all(map(_keeps, steps)):
            return cls()
        model, tokens = fields["model"], [token["content"] for token in fields["added_tokens"]]
        if model["type"] in ("BPE", "Unigram"):
            alphabet, normalize = _known(model), fast.normalizer.normalize_str if fast.normalizer else str
            letters = "".join(one for one in sorted(SOLID) if normalize(one)[-1:] in alphabet)
            return cls(letters.encode(), max(map(len, (*fast.get_vocab(), *tokens))))
        kinds = {step["type"] for step in steps}
        apart = kinds & SPLIT_WORDS and not kinds & JOIN_WORDS
        return cls(words=1 + max((len(token.split()) for token in tokens), default=0) if apart else 0)

    def __call__(self, text: str) -> int:
        data = text.encode("utf-8", "replace")
        signs = len(text) - len(data.translate(None, SIGNS))  # each may make a letter another, unknown one
        if self.words:
            return max(0, num_words(data) - signs) // self.words
        return max(0, len(data) - len(data.translate(None, self.letters)) - signs) // self.longest


def check_size(characters: int, limit: int) -> None:
    """Raises LengthError for more characters than are read for so many tokens, however few they become."""
    if characters > (most := CHARACTERS_PER_TOKEN * max(1, limit)):
        raise LengthError(
            f"the text has {characters:,} characters; of one for {limit:,} tokens, which the engine was built for,"
            f" {most:,} are read; shorten or split it."
        )


def num_words(data: bytes) -> int:
    """Returns how many words between blanks end in an ASCII letter or digit."""
    ends = data.translate(WORD_ENDS)
    return ends.count(b"a ") + ends.endswith(b"a")


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns a normalizer or pre-tokenizer, or those of a sequence."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [part]
    return [step for each in part.get("normalizers") or part.get("pretokenizers") or () for step in _steps(each)]


def _keeps(step: dict[str, Any]) -> bool:
    """Says whether every letter and digit comes through a step."""
    if step["type"] == "Split":
        return step["behavior"] != "Removed"
    if step["type"] == "Replace":
        [(kind, pattern)] = step["pattern"].items()
        return not re.search(r"[A-Za-z0-9.\\\[\]]", pattern if kind == "String" else OF_BLANKS.sub("", pattern))
    return step["type"] in KEEP


def _known(model: dict[str, Any]) -> frozenset[str]:
    """Returns the characters that are known at the beginning, within and at the end of a word."""
    vocab = model["vocab"]
    pieces = frozenset(vocab if isinstance(vocab, dict) else (piece for piece, _ in vocab))
    before, after = (model.get(name) or "" for name in ("continuing_subword_prefix", "end_of_word_suffix"))
    forms = [(b, a) for b in {"", before} for a in {"", after}]
    return frozenset(one for one in SOLID if all(f"{b}{one}{a}" in pieces for b, a in forms))
