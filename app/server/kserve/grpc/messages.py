"""KServe's requests and responses as protobuf messages.

https://github.com/kserve/open-inference-protocol: open_inference_grpc.proto, and triton-inference-server/common:
protobuf/grpc_service.proto.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from vlm.errors import InputError, LimitError, counted
from vlm_app.server.kserve.grpc.wire import field
from vlm_app.server.tensors.values import datatype_of, to_bytes
from vlm_app.server.tensors.wire import MAX_AXES, InferRequest, outputs_to_send, request_from

FINAL = "triton_final_response"
MAX_MESSAGE = 2**31 - 1  # bytes that protobuf reads
CONTENTS = {
    "BOOL": "bool_contents",
    **{f"INT{bits}": "int_contents" for bits in (8, 16, 32)},
    "INT64": "int64_contents",
    **{f"UINT{bits}": "uint_contents" for bits in (8, 16, 32)},
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def read(message: pb.ModelInferRequest) -> InferRequest:
    """Raises InputError with one sentence."""
    raw = list(message.raw_input_contents)
    if raw and len(raw) != len(message.inputs):
        entries, inputs = counted(len(raw), "entry", "entries"), counted(len(message.inputs), "input")
        raise InputError(f"raw_input_contents has {entries} for {inputs}; give one each.")
    inputs, data = [], []
    for number, tensor in enumerate(message.inputs):
        entry, content = _raw(tensor, raw[number]) if raw else _typed(tensor)
        inputs.append(entry)
        data.append(content)
    head = {
        "id": message.id or None,
        "parameters": _values(message.parameters),
        "inputs": inputs,
        "outputs": [{"name": output.name, "parameters": _values(output.parameters)} for output in message.outputs],
    }
    return request_from(head, memoryview(b"".join(data)))


def write(model: tuple[str, str], request: InferRequest, outputs: Mapping[str, np.ndarray]) -> bytes:
    """Returns a ModelInferResponse, serialized: the outputs of a model (name, version) as raw contents. LimitError for
    more than a message may have."""
    return _joined(_response(model, request, outputs))


def write_streamed(
    model: tuple[str, str], request: InferRequest, outputs: Mapping[str, np.ndarray], *, final: bool
) -> bytes:
    """Returns the same as a ModelStreamInferResponse; `final`: it is the request's last. Raises as `write`."""
    response = _response(model, request, outputs, **{FINAL: pb.InferParameter(bool_param=final)})
    return _joined(field(pb.ModelStreamInferResponse.INFER_RESPONSE_FIELD_NUMBER, *response))


def _response(
    model: tuple[str, str], request: InferRequest, outputs: Mapping[str, np.ndarray], **parameters: pb.InferParameter
) -> list[bytes]:
    """Returns a ModelInferResponse's bytes in parts: protobuf would copy contents again and again, during which nothing
    else runs in this process."""
    head = pb.ModelInferResponse(
        model_name=model[0], model_version=model[1], id=request.id or "", parameters=parameters
    )
    contents: list[bytes] = []
    for name in outputs_to_send(request, outputs):
        array = outputs[name]
        head.outputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        contents += field(pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER, to_bytes(array))
    return [head.SerializeToString(), *contents]


def _joined(parts: list[bytes]) -> bytes:
    """Returns a message of these parts. Raises LimitError for a larger one than protobuf reads."""
    if (size := sum(map(len, parts))) > MAX_MESSAGE:
        raise LimitError(
            f"the outputs take {size >> 20:,} MiB, {MAX_MESSAGE >> 20:,} is what a message of gRPC has at most; ask for"
            " fewer outputs, or fewer rows at once."
        )
    return b"".join(parts)  # of many bytes, others run meanwhile


def _raw(tensor: Any, content: bytes) -> tuple[dict[str, Any], bytes]:
    if tensor.HasField("contents"):
        raise InputError(f"input {tensor.name} has contents beside raw_input_contents; give one of them.")
    return _entry(tensor, binary_data_size=len(content)), content


def _typed(tensor: Any) -> tuple[dict[str, Any], bytes]:
    """Returns the values as JSON would have them; those of BYTES as binary data, which need be no text."""
    field = CONTENTS.get(tensor.datatype)
    if unknown := [own.name for own, _ in tensor.contents.ListFields() if own.name != field]:
        place = field or "raw_input_contents"
        raise InputError(f"input {tensor.name} is {tensor.datatype} in {unknown[0]}; its place is {place}.")
    values = getattr(tensor.contents, field) if field else []
    if tensor.datatype != "BYTES":
        return {**_entry(tensor), "data": list(values)}, b""
    content = b"".join(len(value).to_bytes(4, "little") + value for value in values)
    return _entry(tensor, binary_data_size=len(content)), content


def _entry(tensor: Any, **own: int) -> dict[str, Any]:
    parameters = _values(tensor.parameters)
    if len(tensor.shape) > MAX_AXES:
        raise InputError(f"input {tensor.name} has {len(tensor.shape):,} sizes; a shape has {MAX_AXES} at most.")
    size = own.get("binary_data_size")
    if parameters.get("binary_data_size", size) != size:  # kserve's client sends it beside raw_input_contents
        raise InputError(f"input {tensor.name} has the parameter binary_data_size, which is HTTP's; leave it out.")
    return {
        "name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape), "parameters": parameters | own,
    }  # fmt: skip


def _values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what InferParameters hold; None where one holds nothing."""
    kinds = {name: parameter.WhichOneof("parameter_choice") for name, parameter in parameters.items()}
    return {name: getattr(parameters[name], kind) if kind else None for name, kind in kinds.items()}
