"""Tensors on the wire: KServe's inference protocol v2, in JSON and with Triton's binary data extension.

https://github.com/kserve/open-inference-protocol, and triton-inference-server/server: extension_binary_data.md.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlm.errors import InputError, LimitError, counted, listed
from vlm_app.core.names import is_utf8
from vlm_app.server.http.json_bodies import parse_json
from vlm_app.server.tensors.aliases import sent_names
from vlm_app.server.tensors.parameters import check_tensors, read_parameters

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
MAX_AXES = 8
MAX_STRINGS = 65_536  # elements of a tensor of BYTES
MAX_WRITTEN = 2**23  # values of an output as JSON, which take a processor some 8 seconds
PIECE = 2**12  # of them that are written at once
MAX_ID = 1024  # characters: each event of a stream has it


@dataclass(frozen=True)
class InferRequest:
    id: str | None
    inputs: dict[str, np.ndarray]
    outputs: dict[str, bool] | None  # outputs by name, in binary or not; None: all
    binary: bool  # where an output does not say
    parameters: dict[str, Any]  # of the request as a whole
    sent_names: Mapping[str, str] = field(default_factory=dict)  # aliases that it has, by what they stand for


def read(body: bytes, header_length: str | None) -> InferRequest:
    """Reads a request. `header_length`: bytes of the JSON part, whose tensors' data follow it. InputError names what is
    wrong."""
    size = len(body) if header_length is None else _size(header_length, len(body))
    return request_from(parse_json(body[:size]), memoryview(body)[size:])


def request_from(head: Any, data: memoryview) -> InferRequest:
    """Reads a request's JSON, whose tensors' binary data stand one after the other in `data`. Raises InputError."""
    if not isinstance(head, dict) or not isinstance(head.get("inputs"), list):
        flat = isinstance(head, dict) and "text_input" in head
        hint = '; {"text_input": …} goes to /v2/models/NAME/generate' if flat else ""
        raise InputError(f'the request needs "inputs", a list of tensors{hint}.')
    check_tensors(head)
    inputs, rest = {}, data
    for tensor in head["inputs"]:
        name, array, num_bytes = _tensor(tensor, rest)
        if name in inputs:
            raise InputError(f"input {name} was given twice.")
        inputs[name], rest = array, rest[num_bytes:]
    if len(rest):
        raise InputError(
            f"{counted(len(rest), 'byte')} more than the tensors have came; binary_data_size and the data differ."
        )
    parameters = read_parameters(head, "the request")
    binary = parameters.get("binary_data_output") is True
    return InferRequest(
        _id(head), inputs, _requested_outputs(head, binary), binary=binary, parameters=parameters,
        sent_names=sent_names((*inputs, *parameters)),
    )  # fmt: skip


def write(model: tuple[str, str], request: InferRequest, outputs: Mapping[str, np.ndarray]) -> tuple[bytes, int | None]:
    """Returns the body of a model's (name, version) response, and the bytes of its JSON part where binary data follow.

    InputError for an output that is wanted and not there.
    """
    entries, data = [], []
    for name, binary in outputs_to_send(request, outputs).items():
        array = outputs[name]
        entry = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        if binary:
            data.append(to_bytes(array))
            entries.append(json_parts({**entry, "parameters": {"binary_data_size": len(data[-1])}}))
        else:
            entries.append(json_parts(entry, data=json_values(name, array, _plain)))
    head = {"model_name": model[0], "model_version": model[1]}
    own = {} if request.id is None else {"id": request.id}
    text = "".join(json_parts({**head, **own}, outputs=_list_parts(entries))).encode()
    return b"".join((text, *data)), len(text) if data else None


def json_parts(fields: Mapping[str, Any], /, **written: Iterable[str]) -> Iterator[str]:
    """Yields the parts of an object that has `fields`, and others whose JSON is `written` in parts."""
    yield json.dumps(fields, ensure_ascii=False)[:-1]
    for name, parts in written.items():
        yield f", {json.dumps(name)}: "
        yield from parts
    yield "}"


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
    return _list_parts([json.dumps([*map(plain, piece)], ensure_ascii=False)[1:-1]] for piece in pieces)


def _list_parts(items: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yields the parts of a list, whose items have parts each."""
    yield "["
    for number, parts in enumerate(items):
        yield ", " * (number > 0)
        yield from parts
    yield "]"


def outputs_to_send(request: InferRequest, outputs: Mapping[str, np.ndarray]) -> dict[str, bool]:
    """Returns the outputs to send, each in binary or not. InputError for one that is wanted and not there."""
    binary_by_name = dict.fromkeys(outputs, request.binary) if request.outputs is None else request.outputs
    if unknown := [name for name in binary_by_name if name not in outputs]:
        raise InputError(f"{listed(unknown)} is no output of this request; there are {listed(outputs)}.")
    return binary_by_name


def datatype_of(array: np.ndarray) -> str:
    """Returns the protocol's name of an array's type."""
    return next(kind for kind, dtype in DTYPES.items() if array.dtype == dtype)


def to_bytes(array: np.ndarray) -> bytes:
    """Returns the elements little-endian, each of BYTES after its length in 4 bytes."""
    if array.dtype == object:
        return b"".join(len(value).to_bytes(4, "little") + value for value in array.ravel())
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def as_bf16(array: np.ndarray) -> np.ndarray:
    """Returns the values of BF16 that are next to those of float32."""
    import torch

    return torch.from_numpy(array).bfloat16().view(torch.int16).numpy().view(BF16)


def _id(head: dict[str, Any]) -> str | None:
    """Returns what names the request in all of its responses. Raises InputError for what cannot stand there."""
    request_id = head.get("id")
    if request_id is None:
        return None
    if not isinstance(request_id, str):
        raise InputError(f"the request's id is {str(request_id)[:20]}; give a string.")
    if not is_utf8(request_id):
        raise InputError(f"the request's id {request_id[:20]!r} is not valid Unicode; give another one.")
    if len(request_id) > MAX_ID:
        raise LimitError(f"the request's id has {len(request_id):,} characters; give at most {MAX_ID:,}.")
    return request_id


def _size(text: str, total: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 12 or int(text) > total:
        raise InputError(f"Inference-Header-Content-Length is {text[:20]!r}; the body has {total} bytes.")
    return int(text)


def _parameters(entry: Any) -> dict[str, Any]:
    parameters = entry.get("parameters") if isinstance(entry, dict) else None
    return parameters if isinstance(parameters, dict) else {}


def _requested_outputs(head: dict[str, Any], binary: bool) -> dict[str, bool] | None:
    entries = head.get("outputs")
    if not entries:
        return None
    if not isinstance(entries, list) or not all(
        isinstance(x, dict) and isinstance(x.get("name"), str) for x in entries
    ):
        raise InputError('"outputs" must be a list of {"name": …}.')
    return {output["name"]: _parameters(output).get("binary_data", binary) is True for output in entries}


def _tensor(entry: Any, rest: memoryview) -> tuple[str, np.ndarray, int]:
    """Returns (name, values, bytes of `rest` that they took)."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        raise InputError("an input has no name.")
    kind = entry.get("datatype")
    if not isinstance(kind, str) or kind not in DTYPES:
        raise InputError(f"input {name} is of datatype {kind!r}; allowed are {listed(DTYPES, 20)}.")
    shape = _shape(name, kind, entry.get("shape"))
    num_bytes = _parameters(entry).get("binary_data_size")
    if num_bytes is None:
        values = _from_json(name, kind, entry.get("data"))
    elif type(num_bytes) is not int or not 0 <= num_bytes <= len(rest):
        raise InputError(f"input {name} has binary_data_size {num_bytes!r}; {len(rest)} bytes are left.")
    else:
        values = _from_bytes(name, kind, bytes(rest[:num_bytes]))
    if math.prod(shape) != len(values):
        raise InputError(f"input {name} has shape {shape} and {len(values)} values; give {math.prod(shape)}.")
    return name, values.reshape(shape), num_bytes or 0


def _shape(name: str, kind: str, shape: Any) -> list[int]:
    """Returns what an input says of its sizes. Raises InputError for what are none, LimitError for too many."""
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**31 for size in shape):
        raise InputError(f"input {name} needs a shape, a list of sizes from 0 on, which are whole numbers: [1, 4].")
    if len(shape) > MAX_AXES:
        raise LimitError(f"input {name} has {len(shape):,} axes; give at most {MAX_AXES}.")
    # without values, too: NumPy takes no sizes whose product is beyond an index
    if math.prod(size for size in shape if size) >= 2**31:
        raise LimitError(f"input {name} has shape {shape}, more values than are taken; send less at once.")
    if kind == "BYTES" and math.prod(shape) > MAX_STRINGS:
        raise LimitError(f"input {name} has shape {shape}; at most {MAX_STRINGS:,} elements of BYTES are taken.")
    return shape


def _from_json(name: str, kind: str, data: Any) -> np.ndarray:
    """Returns flat values; nested lists are allowed."""
    if kind == "BF16":  # as Triton has it
        raise InputError(
            f"input {name} is BF16, of which JSON has no values; send bytes (binary_data_size, over gRPC"
            " raw_input_contents), or FP32."
        )
    if not isinstance(data, list):
        raise InputError(f"input {name} has no data; give a list of values, as many as its shape says.")
    error = InputError(f"input {name} has data that are not {kind}.")
    try:
        values = _flat(data)
        if kind == "BYTES":
            return _objects([text.encode("utf-8", "replace") for text in values])
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


def _flat(values: list[Any]) -> list[Any]:
    """Lists of lists, of one depth and at each of one length -> their values. ValueError for others."""
    while values and type(values[0]) is list:
        if set(map(type, values)) != {list} or len(set(map(len, values))) != 1:
            raise ValueError
        values = list(itertools.chain.from_iterable(values))
    return values


def _from_bytes(name: str, kind: str, data: bytes) -> np.ndarray:
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


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
