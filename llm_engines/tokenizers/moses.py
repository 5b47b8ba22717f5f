"""Moses' tokenization (Koehn et al., 2007), by sacremoses: signs stand apart before BPE and are joined after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlm.errors import EngineError

DASH = "@-@"  # between two words: one within a word


class Moses:
    """Splits texts of one language and joins those of another, as the model's training did."""

    def __init__(self, source: str, target: str, *, dash_splits: bool = True, escape: bool = True):
        """Raises EngineError where sacremoses is not installed."""
        try:
            from sacremoses import MosesDetokenizer, MosesTokenizer
        except ImportError:
            raise EngineError(
                "this model's texts are tokenized by Moses, which needs sacremoses: pip install 'vlm-runtime[fairseq]'."
            ) from None
        self._tokenizer, self._detokenizer = MosesTokenizer(source), MosesDetokenizer(target)
        self._options = {"aggressive_dash_splits": dash_splits, "escape": escape}

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None) -> Moses | None:
        """Returns what a tokenizer_config.json's field `moses` says; None where there is none."""
        if not config:
            return None
        options = {name: bool(config[name]) for name in ("dash_splits", "escape") if name in config}
        return cls(str(config.get("source") or "en"), str(config.get("target") or "en"), **options)

    def split(self, text: str) -> str:
        return str(self._tokenizer.tokenize(text, return_str=True, **self._options))

    def join(self, text: str) -> str:
        words = text.split()
        try:
            return self._detokenizer.detokenize(words)
        except TypeError:  # sacremoses 0.2 trips over a few dashed words of Czech
            return self._detokenizer.unescape_xml(" ".join(words).replace(f" {DASH} ", "-"))

    def characters(self, text: str) -> str:
        joined = f" {' '.join(text.split())} ".replace(f" {DASH} ", "-")
        return "".join(self._detokenizer.unescape_xml(joined).split())

    def settled(self, words: list[str]) -> list[str]:
        """Returns the first words of a growing text: two wait, and what a dash between them makes one."""
        end = max(0, len(words) - 2)
        while end and DASH in words[end - 1 : end + 1]:
            end -= 1
        return words[:end]

    def context(self, words: list[str]) -> list[str]:
        """Returns the quotation marks that are open, and the words from the last one on behind which any other stands
        apart. Of Czech all: in sacremoses 0.2 a text's last words decide about the others."""
        apart = (i for i in range(len(words) - 1, 0, -1) if _is_plain(words[i]) and words[i - 1] != DASH)
        last = 0 if self._detokenizer.lang == "cs" else next(apart, 0)
        return [*self._open_marks(words[:last]), *words[last:]]

    def _open_marks(self, words: list[str]) -> list[str]:
        marks: dict[str, bool] = {}
        text, before = f" {' '.join(words)} ".replace(f" {DASH} ", "-"), ""
        for word in self._detokenizer.unescape_xml(text).split():
            mark = '"' if set(word) <= set("„“") else word
            is_genitive = self._detokenizer.lang == "en" and word == "'" and before.endswith("s")
            if self._detokenizer.IS_OPEN_QUOTE.search(word) and (marks.get(mark) or not is_genitive):
                marks[mark] = not marks.get(mark)
            before = word
        return [mark for mark, is_open in marks.items() if is_open]


def _is_plain(word: str) -> bool:
    return word[0].isalnum() and word[-1].isalnum()
