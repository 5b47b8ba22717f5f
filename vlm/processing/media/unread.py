"""Sound image files that are not read: what they hold, and what to save them as."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

from PIL.TiffImagePlugin import (
    BITSPERSAMPLE,
    COMPRESSION,
    COMPRESSION_INFO,
    IMAGELENGTH,
    IMAGEWIDTH,
    PLANAR_CONFIGURATION,
    SAMPLEFORMAT,
)

from vlm.processing.media.image_tags import first_directory, segments

WEBP = 50001
_COMPRESSIONS = {
    **dict.fromkeys((33003, 33004, 33005, 34712), "JPEG 2000"), **dict.fromkeys((22610, 34934), "JPEG XR"),
    **dict.fromkeys((50002, 52546), "JPEG XL"), 34661: "JBIG", 34887: "LERC", 34933: "PNG", WEBP: "WebP",
}  # fmt: skip
_HEADERS = 2**20  # bytes in which a JPEG 2000 says how its samples are stored
_KINDS = {1: "integers", 2: "signed integers", 3: "floating point", 5: "complex integers", 6: "complex numbers"}
_DAMAGE = (ValueError, SyntaxError, OSError, LookupError, TypeError, struct.error)
_FRAMES = {bytes([0xC0 + kind]) for kind in range(16)} - {
    b"\xc4",
    b"\xc8",
    b"\xcc",
}  # what a JPEG's picture begins with


def unread(file: BinaryIO) -> str | None:
    """Returns what a file is, and what to do, where it is a sound TIFF or JPEG that Pillow cannot read; else None."""
    file.seek(0)
    beginning = file.read(4)
    try:
        if beginning[:2] in (b"II", b"MM"):
            return unread_tiff(first_directory(file))
        return _unread_jpeg(file) if beginning[:2] == b"\xff\xd8" else None
    except _DAMAGE:
        return None


def unread_tiff(tags: Mapping[int, Any]) -> str | None:
    """Returns the same of a directory of a TIFF."""
    try:
        return _unread_tiff(tags)
    except _DAMAGE:
        return None


def unread_jpeg2000(file: BinaryIO) -> str | None:
    """Returns the same of a JPEG 2000 that Pillow reads, and in which it makes black of white: one in colour, or with
    transparency, of more than 8 bits."""
    file.seek(0)
    _, begin, rest = file.read(_HEADERS).partition(b"\xff\x4f\xff\x51")  # SOC and SIZ, whose components follow
    count = int.from_bytes(rest[36:38], "big")
    bits = max(((size & 127) + 1 for size in rest[38 : 38 + 3 * count : 3]), default=8)
    if not begin or count == 1 or bits <= 8:
        return None
    return f"is a JPEG 2000 of {bits} bits a sample in colour, which is not read; save it with 8 bits"


def misread_tiff(tags: Mapping[int, Any]) -> str | None:
    """Returns the same of a directory of a TIFF that Pillow reads, and takes the bytes of for samples."""
    bits, planes, compression = (tags.get(tag) for tag in (BITSPERSAMPLE, PLANAR_CONFIGURATION, COMPRESSION))
    if planes != 2 or compression not in (None, 1) or not isinstance(bits, tuple) or len(bits) == 1 or max(bits) <= 8:
        return None
    return f"is a TIFF of {max(bits)} bits in planes that is only read compressed; save it with LZW or deflate"


def _unread_tiff(tags: Mapping[int, Any]) -> str | None:
    if not (tags.get(IMAGEWIDTH) and tags.get(IMAGELENGTH)):
        return None
    compression = tags.get(COMPRESSION, 1)
    if compression == WEBP or compression not in COMPRESSION_INFO:  # WebP is not in every libtiff
        words = _COMPRESSIONS.get(compression, f"number {compression}")
        return f"is a TIFF in a compression that is not read ({words}); save it with LZW or deflate"
    bits, kind = (next(iter(tags.get(tag, ())), 1) for tag in (BITSPERSAMPLE, SAMPLEFORMAT))
    if kind in _KINDS and (kind > 1 or bits not in (1, 2, 4, 8, 16)):
        return f"is a TIFF with samples that are not read ({bits} bits, {_KINDS[kind]}); save it with 8 or 16 bits"
    return None


def _unread_jpeg(file: BinaryIO) -> str | None:
    file.seek(0)
    bits = next((data[0] for marker, data in segments(file) if marker in _FRAMES and data), 8)
    return None if bits == 8 else f"is a JPEG of {bits} bits a sample, which is not read; save it with 8 bits"
