"""Text <-> token ids, from a `tokenizer.json`; and text that grows token by token."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from vlm.errors import EngineError


class Tokenizer:
    """A thin wrapper that fixes how this project encodes and decodes."""

    def __init__(self, fast: FastTokenizer):
        self._fast = fast

    @classmethod
    def from_dir(cls, path: Path) -> Tokenizer | None:
        """The folder's tokenizer; None when it has none (an engine of random weights)."""
        file = path / "tokenizer.json"
        if not file.is_file():
            return None
        try:
            return cls(FastTokenizer.from_file(str(file)))
        except Exception as error:  # the library raises bare Exception
            raise EngineError(f"{file} is not a readable tokenizer: {error}.") from None

    def encode(self, text: str) -> list[int]:
        """Without special tokens."""
        return self._fast.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: list[int]) -> str:
        """Special tokens are left out."""
        return self._fast.decode(token_ids, skip_special_tokens=True)


class TextStream:
    """Turns growing token ids into text pieces that never end inside a character."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer, self._ids, self._sent = tokenizer, [], ""

    def push(self, token_ids: tuple[int, ...], last: bool = False) -> str:
        self._ids += token_ids
        text = self._tokenizer.decode(self._ids)
        # an unfinished byte sequence decodes to U+FFFD
        if not last and text.endswith("\ufffd"):
            return ""
        piece, self._sent = text[len(self._sent) :], text
        return piece
