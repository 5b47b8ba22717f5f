"""Moses' tokenization (Koehn et al., 2007), by sacremoses: signs stand apart before BPE and are joined after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlm.errors import EngineError


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
            return self._detokenizer.unescape_xml(" ".join(words).replace(" @-@ ", "-"))
