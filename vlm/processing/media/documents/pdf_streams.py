"""The streams of a PDF's file: their dictionaries tell of an image what PDFium does not, its mask, levels and layer."""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from vlm.artifacts.files import open_regular

PIECE = 2**13  # bytes that are read at once
MOST_PIECES = 2**17  # of a file, one a stream and more: what is read in half a second
MOST_INFLATED = 2**26  # bytes of objects that are deflated together
LONGEST = 2**16  # bytes of a dictionary that are looked at
OVERLAP = 2**6  # bytes in which a word lies that is looked for
COMPARED = 2**10  # bytes at an image's beginning
_STREAM = re.compile(rb"stream[ \t]{0,8}[\r\n]")  # as PDFium has it, and some programs that do not read the standard
_LENGTH = re.compile(rb"/Length\s+(\d{1,10})\b(?!\s+\d+\s+R)")  # not one that stands in an object of its own
_ALTERED = re.compile(
    rb"/(?:SMask|Mask|OC)\b|/Decode\b(?!\s*\[(?:\s*0\s+1)+\s*\])|/ColorTransform\b(?!\s+1\b)|/DecodeParms[\s\[]*\d"
)
_TRANSFER = re.compile(rb"/TR2?\s*(?:\d+\s+\d+\s+R|\[|<<)")  # a function between values and colours; names are none


@dataclass(frozen=True)
class AlteredImages:
    """The JPEGs of a PDF that are drawn through a mask, in a layer, or with other levels than they are stored with."""

    source: Path | bytes  # a file or its content, which is read when it is needed
    is_encrypted: bool

    def may_hold(self, content: bytes) -> bool:
        """Says whether a JPEG may be one of them. Those that begin alike count as one; all do that are too short to be
        told apart, or encrypted in the file."""
        beginnings = self._beginnings
        if not beginnings or self.is_encrypted or len(content) < COMPARED:
            return beginnings is None or bool(beginnings)
        return content[:COMPARED] in beginnings

    @cached_property
    def _beginnings(self) -> set[bytes] | None:
        """Returns how they begin; None: any JPEG may be one of them."""
        source = self.source
        with io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
            try:
                return set(_altered(file))
            except (ValueError, zlib.error):
                return None


def _altered(file: BinaryIO) -> Iterator[bytes]:
    """Yields how each altered JPEG begins. Raises ValueError or zlib.error where any may be one."""
    room = MOST_INFLATED
    for text, place in texts(file):
        objects, dictionary = b"", text.rpartition(b"endobj")[2]
        if place is not None and b"/ObjStm" in dictionary:
            objects = _inflated(file, place, room)
            room -= len(objects)
        if _TRANSFER.search(text) or _TRANSFER.search(objects):
            raise ValueError("levels are changed by what draws an image")
        if place is not None and b"DCTDecode" in dictionary and _ALTERED.search(dictionary):
            yield _read_at(file, place, COMPARED)


def texts(file: BinaryIO) -> Iterator[tuple[bytes, int | None]]:
    """Yields what lies outside of streams, and where the content of the stream that follows begins; None where more
    text does. A content is passed over where its dictionary, the end of the text, says how long it is. Raises
    ValueError for more than `MOST_PIECES`."""
    text, place = b"", 0  # what was read, and where in the file it ends
    for _ in range(MOST_PIECES):
        if not (piece := _read_at(file, place, PIECE)):
            return
        start = max(0, len(text) - OVERLAP)
        text, place = text + piece, place + len(piece)
        match = _STREAM.search(text, start)
        if match is None:
            yield text[start:], None
            text = text[-LONGEST:]
            continue
        place -= len(text) - match.end()
        place += match[0].endswith(b"\r") and _read_at(file, place, 1) == b"\n"
        before, text = text[: match.start()], b""
        is_end = before.endswith(b"end")
        yield before, None if is_end else place
        place += 0 if is_end else _length(file, before.rpartition(b"endobj")[2], place)
    raise ValueError("the file has too many streams")


def _inflated(file: BinaryIO, place: int, most: int) -> bytes:
    """Returns the objects that are deflated together from `place` on. Raises zlib.error for others, encrypted ones,
    too, and ValueError for more than so many bytes."""
    inflater, objects = zlib.decompressobj(), bytearray()
    while not inflater.eof and (piece := _read_at(file, place, PIECE)):
        place += len(piece)
        objects += inflater.decompress(piece, most + 1 - len(objects))
        if len(objects) > most:
            raise ValueError("the file has too many objects in streams")
    return bytes(objects)


def _length(file: BinaryIO, dictionary: bytes, place: int) -> int:
    """Returns how long a stream is that begins at `place`; 0 where its dictionary does not say so, or not rightly."""
    match = _LENGTH.search(dictionary)
    length = int(match[1]) if match else 0
    return length if b"endstream" in _read_at(file, place + length, 16) else 0


def _read_at(file: BinaryIO, place: int, size: int) -> bytes:
    file.seek(place)
    return file.read(size)
