"""The values of a tensor: by the protocol's datatypes, as JSON has them and as bytes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vlm.errors import InputError, LimitError
from vlm_app.server.tensors.json_parts import list_parts

BF16 = np.dtype([("bits", "<u2")])  # NumPy has none; what comes so becomes float32, what goes so is `as_bf16`
DTYPES = {
    "BOOL": np.bool_,
    **{f"{sign}INT{bits}": np.dtype(f"{sign}int{bits}".lower()) for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": np.float16,
    "BF16": BF16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,  # of bytes
}
# of a datatype's family -> what JSON gives for it
JSON_TYPES = {"INT": {int}, "FP": {int, float}, "BO": {bool}}
_IN_JSON = {"BYTES": "texts", "BOOL": "true and false"}
MAX_WRITTEN = 2**23  # values of an output as JSON, which take a processor some 8 seconds
PIECE = 2**12  # of them that are written at once


def datatype_of(array: np.ndarray) -> str:
    """Returns the protocol's name of an array's type."""
    return next(kind for kind, dtype in DTYPES.items() if array.dtype == dtype)


def from_json(name: str, kind: str, data: Any) -> np.ndarray:
    """Returns flat values; nested lists are allowed."""
    if kind == "BF16":  # as Triton has it
        raise InputError(
            f"input {name} is BF16, of which JSON has no values; send bytes (binary_data_size, over gRPC"
            " raw_input_contents), or FP32."
        )
    if not isinstance(data, list):
        raise InputError(f"input {name} has no data; give a list of values, as many as its shape says.")
    error = InputError(
        f"input {name} has data that are not {kind}; give {_IN_JSON.get(kind, 'numbers that it holds')}."
    )
    try:
        values = _flat(data)
        if kind == "BYTES":
            return _objects([as_element(text) for text in values])
        # of texts NumPy would make an array in which each takes as much as the longest
        if values and not set(map(type, values)) <= JSON_TYPES["INT" if "INT" in kind else kind[:2]]:
            raise error
        array = np.array(values)
        limits = np.iinfo(DTYPES[kind]) if "INT" in kind else None
        if limits and array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
            raise error
        with np.errstate(over="ignore"):  # what is too large is infinite, which options refuse
            return array.astype(DTYPES[kind])
    except (ValueError, TypeError, AttributeError, OverflowError):
        raise error from None


def as_element(text: str) -> bytes:
    """Returns a text as an element of BYTES: half a pair of surrogates, which JSON may hold, is for `text_of` to
    refuse."""
    return text.encode("utf-8", "surrogatepass")


def text_of(name: str, element: bytes) -> str:
    """Returns an element of BYTES as the text that it is. Raises InputError for one that is no UTF-8: a model would
    read something else in its place."""
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not valid Unicode (at byte {error.start + 1}: {element[error.start : error.start + 1]!r}); give"
            " it as UTF-8."
        ) from None


def _flat(values: list[Any]) -> list[Any]:
    """Lists of lists, of one depth and at each of one length -> their values. ValueError for others."""
    while values and type(values[0]) is list:
        if set(map(type, values)) != {list} or len(set(map(len, values))) != 1:
            raise ValueError
        values = list(itertools.chain.from_iterable(values))
    return values


def from_bytes(name: str, kind: str, data: bytes) -> np.ndarray:
    """Returns flat values, little-endian; each of BYTES after its length, 4 bytes"""
    if kind == "BYTES":
        return _objects(list(_elements(name, data)))
    dtype = np.dtype(DTYPES[kind]).newbyteorder("<")
    if len(data) % dtype.itemsize:
        raise InputError(f"input {name} has {len(data)} bytes, which is no multiple of {dtype.itemsize}.")
    values = np.frombuffer(data, dtype)
    return (values["bits"].astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else values


def _elements(name: str, data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        begin = at + 4
        at = begin + int.from_bytes(data[at:begin], "little")
        if at > len(data):
            raise InputError(f"input {name} ends within one of its elements.")
        yield data[begin:at]


def _objects(values: list[bytes]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def to_bytes(array: np.ndarray) -> bytes:
    """Returns the elements little-endian, each of BYTES after its length in 4 bytes."""
    if array.dtype == object:
        return b"".join(len(value).to_bytes(4, "little") + value for value in array.ravel())
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def as_bf16(array: np.ndarray) -> np.ndarray:
    """Returns the values of BF16 that are next to those of float32."""
    import torch

    return torch.from_numpy(array).bfloat16().view(torch.int16).numpy().view(BF16)


def json_values(name: str, array: np.ndarray, plain: Callable[[Any], Any]) -> Iterator[str]:
    """Returns the parts of a flat list of an output's elements, each as `plain` has it: between parts other threads
    have their turn, the event loop's, too. Raises LimitError for more elements than are written so, InputError for
    those of BF16."""
    if array.dtype == BF16:
        raise InputError(
            f"output {name} is BF16, of which JSON has no values; ask for it in binary (binary_data of"
            " /v2/models/NAME/infer), or over gRPC."
        )
    if array.size > MAX_WRITTEN:
        raise LimitError(
            f"output {name} has {array.size:,} values, as JSON at most {MAX_WRITTEN:,} are sent; ask for it in binary"
            " (binary_data of /v2/models/NAME/infer), or over gRPC."
        )
    flat = array.ravel()
    pieces = (flat[at : at + PIECE].tolist() for at in range(0, flat.size, PIECE))
    return list_parts([json.dumps([*map(plain, piece)], ensure_ascii=False)[1:-1]] for piece in pieces)
