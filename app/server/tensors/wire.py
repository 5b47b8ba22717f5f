"""Tensors on the wire: KServe's inference protocol v2, in JSON and with Triton's binary data extension.

https://github.com/kserve/open-inference-protocol, and triton-inference-server/server: extension_binary_data.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vlm.errors import InputError, LimitError, counted, listed
from vlm_app.core.names import is_utf8
from vlm_app.server.http.json_bodies import parse_json
from vlm_app.server.tensors.aliases import sent_names
from vlm_app.server.tensors.json_parts import json_parts, list_parts
from vlm_app.server.tensors.parameters import check_tensors, read_parameters
from vlm_app.server.tensors.values import DTYPES, datatype_of, from_bytes, from_json, json_values, to_bytes

MAX_AXES = 8
MAX_STRINGS = 65_536  # elements of a tensor of BYTES
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
            raise InputError(f"input {name} was given twice; give it once.")
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
    """Returns the body of a model's (name, version) response, and the bytes of its JSON part where binary data
    follow. Raises as `json_values`."""
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
    text = "".join(json_parts({**head, **own}, outputs=list_parts(entries))).encode()
    return b"".join((text, *data)), len(text) if data else None


def outputs_to_send(request: InferRequest, outputs: Mapping[str, np.ndarray]) -> dict[str, bool]:
    """Returns the outputs to send, each in binary or not."""
    return dict.fromkeys(outputs, request.binary) if request.outputs is None else request.outputs


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
        values = from_json(name, kind, entry.get("data"))
    elif type(num_bytes) is not int or not 0 <= num_bytes <= len(rest):
        raise InputError(f"input {name} has binary_data_size {num_bytes!r}; {len(rest)} bytes are left.")
    else:
        values = from_bytes(name, kind, bytes(rest[:num_bytes]))
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


def _plain(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
