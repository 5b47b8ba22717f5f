"""A `tokenizer.json` -> the library's tokenizer, unless it asks for more than any published one does.

The library allocates what a file says, and what it cannot allocate ends the process: sizes are checked before.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from vlm.artifacts.files import load_json
from vlm.errors import VlmError, cut, first_line
from vlm.limits import MAX_ADDED_TOKENS, MAX_TEXT_GROWTH, MAX_TOKENIZER_BYTES, MAX_WORD_CHARACTERS


def read_tokenizer(path: Path, error: type[VlmError]) -> Tokenizer:
    """Reads a tokenizer that pads nothing. `error` for what is no file, is damaged or asks for too much."""
    try:
        return _loaded(load_json(path, MAX_TOKENIZER_BYTES))
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as reason:  # the library raises bare Exception, and a panic of it is not even one
        message = getattr(reason, "strerror", None) or first_line(reason)
        raise error(f"{path} is not a readable tokenizer: {cut(message, 200)}; fetch it again.") from None


def _loaded(fields: Any) -> Tokenizer:
    _check(fields)
    # as it was checked: of a key that stands twice, the library would read the first one, too
    tokenizer = Tokenizer.from_str(json.dumps({**fields, "padding": None}))
    with contextlib.suppress(Exception):  # it may not know the letter; what panics at this panics at any text
        tokenizer.encode("a")
    return tokenizer


def _check(fields: Any) -> None:
    """Raises ValueError."""
    if not isinstance(fields, dict):
        raise ValueError(f"it holds a JSON {type(fields).__name__}, expected is an object")
    if isinstance(tokens := fields.get("added_tokens"), list) and len(tokens) > MAX_ADDED_TOKENS:
        raise ValueError(f"it adds {len(tokens):,} tokens, the limit is {MAX_ADDED_TOKENS:,}")
    for part in ("normalizer", "decoder"):
        if math.prod(map(_growth, _objects(fields.get(part)))) > MAX_TEXT_GROWTH:
            raise ValueError(f"its {part} may make a text more than {MAX_TEXT_GROWTH} times as long")
    for model in _objects(fields.get("model")):
        longest = model.get("max_input_chars_per_word")
        if isinstance(longest, int) and longest > MAX_WORD_CHARACTERS:
            raise ValueError(f"its max_input_chars_per_word is {longest}, the limit is {MAX_WORD_CHARACTERS:,}")


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects in a value, but for a vocabulary; the library tells their types by their keys."""
    waiting = [value]
    while waiting:
        if isinstance(value := waiting.pop(), dict):
            yield value
            waiting += [inner for key, inner in value.items() if key not in ("vocab", "merges")]
        elif isinstance(value, list):
            waiting += value


def _growth(step: dict[str, Any]) -> int:
    """Returns how many times as long a step may make a text. ValueError for a map of characters that is damaged."""
    if isinstance(charsmap := step.get("precompiled_charsmap"), str):
        return _longest_entry(base64.b64decode(charsmap))
    if isinstance(prefix := step.get("prepend"), str):
        return 1 + len(prefix)
    if not isinstance(content := step.get("content"), str):
        return 1
    pattern = step.get("pattern")
    matches_nothing = isinstance(pattern, dict) and "Regex" in pattern  # between any two characters
    return max(1, len(content) + matches_nothing)


def _longest_entry(charsmap: bytes) -> int:
    """Returns the bytes that SentencePiece's map may make of a character: a trie's size, the trie, texts after it."""
    size = int.from_bytes(charsmap[:4], "little")
    if size > len(charsmap) - 4:
        raise ValueError("its precompiled_charsmap is damaged: it claims more bytes than it has")
    return max(1, *map(len, charsmap[4 + size :].split(b"\0")))
