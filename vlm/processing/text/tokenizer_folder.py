"""A folder's tokenizer: its files, and what they say of special tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from vlm.artifacts.files import read_json
from vlm.artifacts.hugging_face.tokenizer_file import read_tokenizer
from vlm.errors import EngineError, shown

NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


@dataclass(frozen=True)
class TokenizerFolder:
    """The files of a folder, read."""

    fast: FastTokenizer
    target: FastTokenizer | None  # decodes where outputs have ids of their own
    settings: dict[str, Any]  # of tokenizer_config.json

    @classmethod
    def read(cls, path: Path) -> TokenizerFolder | None:
        """Returns None for a folder without a tokenizer. Raises EngineError for files that cannot be read."""
        fast = _read(path / "tokenizer.json")
        if fast is None:
            return None
        settings = _settings(path / "tokenizer_config.json")
        if "added_tokens_decoder" not in settings:  # older releases have them apart
            settings |= _settings(path / "special_tokens_map.json")
        return cls(fast, _read(path / "tokenizer_target.json"), settings)

    @property
    def named_tokens(self) -> dict[str, str]:
        """Returns the texts of special tokens, of NAMED those that there are. Raises TypeError for what is no token."""
        return {name: content for name in NAMED if (content := _content(self.settings.get(name)))}


def _read(file: Path) -> FastTokenizer | None:
    return read_tokenizer(file, EngineError) if file.exists() else None


def _settings(file: Path) -> dict[str, Any]:
    return read_json(file, EngineError, "engine") if file.exists() else {}


def _content(token: Any) -> str:
    """Returns the text of a special token as settings write it: a text, or a mapping with one."""
    text = (token.get("content") if isinstance(token, dict) else token) or ""
    if not isinstance(text, str):
        raise TypeError(f"a token is a text, not {shown(text)}")
    return text
