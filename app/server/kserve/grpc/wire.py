"""Protobuf's wire format, where its library makes all others wait: how much a message has, counted before it is parsed,
since a few bytes of one become a hundred in memory; and fields of many bytes, written without copying them.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator

from vlm_app.server.http.json_bodies import MAX_VALUES
from vlm_app.server.tensors.wire import MAX_STRINGS

MAX_FIELDS = 4096  # of a message and its tensors; what their contents hold is counted apart
TENSORS = (4, 5, 6)  # parameters, inputs and outputs of a ModelInferRequest
SHAPE, CONTENTS = 3, 5  # of an input
VARINTS, VALUE_BYTES = range(1, 6), {6: 4, 7: 8}  # kinds of contents
GO_ON = bytes(range(128, 256))  # bytes of a varint after which another one comes
VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)


def is_too_large(message: bytes) -> bool:
    """Looks at no more of it than may be there."""
    num_fields = num_elements = num_values = 0
    for fields, elements, values in _parts(memoryview(message)):
        num_fields, num_elements, num_values = num_fields + fields, num_elements + elements, num_values + values
        if num_fields > MAX_FIELDS or num_elements > MAX_STRINGS or num_values > MAX_VALUES:
            return True
    return False


def field(number: int, *parts: bytes) -> list[bytes]:
    """Returns a field that holds these bytes, or the message that they make, in parts."""
    return [_to_varint(number << 3 | BYTES) + _to_varint(sum(map(len, parts))), *parts]


def _parts(message: memoryview) -> Iterator[tuple[int, int, int]]:
    """Yields (fields, elements of contents, values) for each field of a request, of its tensors and their contents."""
    for number, content in _fields(message):
        yield 1, 0, 0
        if number in TENSORS:
            for inner, part in _fields(content):
                yield 1, 0, _num_varints(part) if inner == SHAPE else 0
                if inner == CONTENTS:
                    yield from ((0, 1, _num_values(kind, values)) for kind, values in _fields(part))


def _num_values(kind: int, packed: memoryview) -> int:
    """Counts the values of a field of contents; a single one, and a text, is an element alone."""
    return _num_varints(packed) if kind in VARINTS else len(packed) // VALUE_BYTES.get(kind, len(packed) + 1)


def _num_varints(packed: memoryview) -> int:
    """Counts the bytes that end one."""
    return len(bytes(packed).translate(None, GO_ON))


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


def _to_varint(value: int) -> bytes:
    low, rest = value & 127, value >> 7
    return bytes((low | 128,)) + _to_varint(rest) if rest else bytes((low,))
