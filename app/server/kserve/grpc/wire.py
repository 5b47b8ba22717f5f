"""How many fields a message has, counted before it is parsed: a few bytes of one become a hundred in memory.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

MAX_FIELDS = 4096  # of a message and its tensors; their values are counted apart
TENSORS = (4, 5, 6)  # parameters, inputs and outputs of a ModelInferRequest
VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)


def has_too_many_fields(message: bytes) -> bool:
    """Looks at no more than MAX_FIELDS of them."""
    return sum(1 for _ in islice(_all_fields(memoryview(message)), MAX_FIELDS + 1)) > MAX_FIELDS


def _all_fields(message: memoryview) -> Iterator[int]:
    """Yields the numbers of a request's fields and of those of its tensors."""
    for number, content in _fields(message):
        yield number
        if number in TENSORS:
            for inner, _ in _fields(content):
                yield inner


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yields (number, content) up to the first that protobuf cannot read either; a group's fields as the message's."""
    at, nothing = 0, message[:0]
    while at < len(message):
        key, at = _varint(message, at)
        kind, content = key & 7, nothing
        if kind == VARINT:
            _, at = _varint(message, at)
        elif kind == BYTES:
            size, at = _varint(message, at)
            content, at = message[at : at + size], at + size
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
        elif kind not in (GROUP, END_GROUP):
            return
        yield key >> 3, content


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Returns (value, where it ends); one that has no end ends with the message."""
    value = 0
    for shift, byte in enumerate(message[at : at + 10]):
        value |= (byte & 127) << (7 * shift)
        if byte < 128:
            return value, at + shift + 1
    return value, len(message)
