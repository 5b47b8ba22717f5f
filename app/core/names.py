"""File names, and sentences that quote names, as text. A name may hold bytes that are no UTF-8, ends of lines, and what
a terminal acts upon."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from urllib.parse import quote

UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # Unicode: control, format, surrogate, end of line, of paragraph
JOINERS = "\u200c\u200d"  # of category Cf, and part of words and emojis
MAX_SENTENCE, MAX_WORD = 1000, 200  # characters of a sentence that may quote what was sent, and of a word in it


def is_utf8(text: str) -> bool:
    """Says whether a text can be written as UTF-8; a name whose bytes are none holds surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    r"""Returns a text as one line that no terminal acts upon and any file can hold: `\x1b` for an escape character."""
    return text if text.isprintable() else "".join(_escaped(c) if _is_unsafe(c) else c for c in text)


def one_line(text: str, most: int = MAX_SENTENCE) -> str:
    """Returns a sentence that quotes what others have written: as `printable`, it and its words cut in their middle."""
    text = printable(_cut(text, most))
    return _cut(re.sub(r"\S+", lambda word: _cut(word[0], MAX_WORD), text), most)


def percent_encoded(name: str) -> str:
    """Returns a file name without unsafe characters: `%0A` for the end of a line, `%E9` for a byte that is no UTF-8."""
    if name.isprintable():
        return name
    return "".join(quote(c.encode(errors="surrogateescape")) if _is_unsafe(c) else c for c in name)


def as_text(path: Path) -> str:
    """Returns a path as it is, or, where its bytes are no UTF-8, its URI: different paths have different texts."""
    return str(path) if is_utf8(str(path)) else path.absolute().as_uri()


def _cut(text: str, most: int) -> str:
    """Returns at most so many characters: a long text's beginning and end."""
    end = most // 2
    return text if len(text) <= most else f"{text[: most - end - 1]}…{text[-end:]}"


def _is_unsafe(character: str) -> bool:
    return unicodedata.category(character) in UNSAFE and character not in JOINERS


def _escaped(character: str) -> str:
    is_byte = 0xDC80 <= ord(character) <= 0xDCFF  # how Python keeps a byte that is no UTF-8
    return f"\\x{ord(character) - 0xDC00:02x}" if is_byte else character.encode("unicode_escape").decode()
