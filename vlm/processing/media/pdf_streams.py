"""The streams of a PDF's file: their dictionaries tell of an image what PDFium does not, its mask, levels and layer."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from vlm.artifacts.files import open_regular

PIECE = 2**13  # bytes that are read at once
LONGEST = 2**16  # bytes of a dictionary that are looked at
COMPARED = 2**10  # bytes at an image's beginning
_STREAM = re.compile(rb"stream\r?\n")
_LENGTH = re.compile(rb"/Length\s+(\d{1,10})\b(?!\s+\d+\s+R)")  # not one that stands in an object of its own
_ALTERED = re.compile(rb"/(?:SMask|Mask|OC)\b|/Decode\s*\[(?!(?:\s*0\s+1)+\s*\])")


@dataclass(frozen=True)
class AlteredImages:
    """The JPEGs of a PDF that are drawn through a mask, in a layer, or with other levels than they are stored with."""

    source: Path | bytes  # a file or its content, which is read when it is needed
    is_encrypted: bool

    def may_hold(self, content: bytes) -> bool:
        """Says whether a JPEG may be one of them. Those that begin alike count as one; all do that are too short to be
        told apart, or encrypted in the file."""
        if not self._beginnings or self.is_encrypted or len(content) < COMPARED:
            return bool(self._beginnings)
        return content[:COMPARED] in self._beginnings

    @cached_property
    def _beginnings(self) -> set[bytes]:
        source = self.source
        with io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
            return {_read_at(file, place, COMPARED) for dictionary, place in streams(file) if _is_altered(dictionary)}


def streams(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yields the dictionary of each stream and where its content begins; what that holds is passed over, where the
    dictionary says how long it is."""
    text, place = b"", 0  # what was read, and where in the file it ends
    while piece := _read_at(file, place, PIECE):
        start = max(0, len(text) - len(b"stream\r\n"))
        text, place = text + piece, place + len(piece)
        match = _STREAM.search(text, start)
        if match is None:
            text = text[-LONGEST:]
            continue
        place -= len(text) - match.end()
        before, text = text[: match.start()], b""
        if not before.endswith(b"end"):
            dictionary = before.rpartition(b"endobj")[2]
            yield dictionary, place
            place += _length(file, dictionary, place)


def _length(file: BinaryIO, dictionary: bytes, place: int) -> int:
    """Returns how long a stream is that begins at `place`; 0 where its dictionary does not say so, or not rightly."""
    match = _LENGTH.search(dictionary)
    length = int(match[1]) if match else 0
    return length if b"endstream" in _read_at(file, place + length, 16) else 0


def _is_altered(dictionary: bytes) -> bool:
    return b"DCTDecode" in dictionary and _ALTERED.search(dictionary) is not None


def _read_at(file: BinaryIO, place: int, size: int) -> bytes:
    file.seek(place)
    return file.read(size)
