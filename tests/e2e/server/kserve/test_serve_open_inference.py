"""The Open Inference Protocol's required calls, fields, types and errors, one by one, over HTTP and gRPC.

https://github.com/kserve/open-inference-protocol: specification/protocol/inference_rest.md, open_inference_rest.yaml,
inference_grpc.md. A case is named as the text names it.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

import grpc
import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc", reason="the extra grpc is not installed")

from google.protobuf.json_format import MessageToDict
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.kits.servers.server_kit import load, serving
from vlm_app.server.tensors.values import DTYPES

IDS = {"name": "input_ids", "shape": [1, 3], "datatype": "UINT32", "data": [5, 9, 1]}
LENGTH = {"name": "max_output_len", "shape": [1, 1], "datatype": "UINT32", "data": [4]}
MINIMUM = {**LENGTH, "name": "min_length"}
INFER = "/v2/models/mini-t5/infer"


@pytest.fixture(scope="module")
def served():
    with serving(load("mini-t5"), grpc_port=0) as found:
        yield found


@pytest.fixture(scope="module")
def stub(served):
    with grpc.insecure_channel(served.grpc_address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def http(served, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{served.url}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def fits(value: Any, shape: Any) -> bool:
    """Does JSON have these fields and types? A list's element stands for all; a name with ? may be left out."""
    if isinstance(shape, dict):
        known = {name.rstrip("?"): (kind, name.endswith("?")) for name, kind in shape.items()}
        return (
            isinstance(value, dict)
            and value.keys() <= known.keys()
            and all(fits(value[name], kind) if name in value else optional for name, (kind, optional) in known.items())
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(each, shape[0]) for each in value)
    return type(value) is shape


METADATA_TENSOR = {"name": str, "datatype": str, "shape": [int]}
SERVER = {"name": str, "version": str, "extensions": [str]}
MODEL = {"name": str, "versions?": [str], "platform": str, "inputs": [METADATA_TENSOR], "outputs": [METADATA_TENSOR]}
OUTPUT = {"name": str, "shape": [int], "datatype": str, "parameters?": dict, "data": [int]}
RESPONSE = {"model_name": str, "model_version?": str, "id?": str, "parameters?": dict, "outputs": [OUTPUT]}


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v2/health/live", {"live": bool}),
        ("/v2/health/ready", {"live": bool, "ready?": bool}),
        ("/v2/models/mini-t5/ready", {"name": str, "ready": bool}),
        ("/v2/models/mini-t5/versions/1/ready", {"name": str, "ready": bool}),
        ("/v2", SERVER),
        ("/v2/", SERVER),
        ("/v2/models/mini-t5", MODEL),
        ("/v2/models/mini-t5/versions/1", MODEL),
    ],
)
def test_required_get(served, path, shape):
    status, found = http(served, path)
    assert status == 200 and fits(found, shape), found


@pytest.mark.parametrize("path", [INFER, "/v2/models/mini-t5/versions/1/infer"])
def test_required_infer(served, path):
    status, found = http(
        served, path, {"id": "42", "inputs": [IDS, LENGTH, MINIMUM], "outputs": [{"name": "output_ids"}]}
    )
    assert status == 200 and fits(found, RESPONSE), found
    assert found["id"] == "42" and [output["name"] for output in found["outputs"]] == ["output_ids"]
    assert found["outputs"][0]["shape"] == [1, 1, 4] and len(found["outputs"][0]["data"]) == 4
    status, found = http(served, path, {"inputs": [IDS, LENGTH]})
    assert status == 200 and "id" not in found and len(found["outputs"]) > 1


@pytest.mark.parametrize(
    ("case", "body"),
    [
        ("parameters are optional", {"parameters": {}, "inputs": [{**IDS, "parameters": {}}, LENGTH]}),
        ("data in its natural representation", {"inputs": [{**IDS, "data": [[5, 9, 1]]}, {**LENGTH, "data": [[4]]}]}),
        ("data flattened", {"inputs": [IDS, LENGTH]}),
        ("outputs may be empty", {"inputs": [IDS, LENGTH], "outputs": []}),
        ("an output's parameters are optional",
         {"inputs": [IDS], "outputs": [{"name": "output_ids", "parameters": {}}]}),
        ("as MLServer's codecs write it",
         {"parameters": {"content_type": "np"}, "inputs": [{**IDS, "parameters": {"content_type": "np"}}]}),
    ],
)  # fmt: skip
def test_inference_request(served, case, body):
    status, found = http(served, INFER, body)
    assert status == 200 and fits(found, RESPONSE), (case, found)


@pytest.mark.parametrize(
    ("case", "path", "body"),
    [
        ("no such model: metadata", "/v2/models/gpt", None),
        ("no such version: metadata", "/v2/models/mini-t5/versions/7", None),
        ("no such model: ready", "/v2/models/gpt/ready", None),
        ("no such model: infer", "/v2/models/gpt/infer", {"inputs": [IDS]}),
        ("no such version: infer", "/v2/models/mini-t5/versions/7/infer", {"inputs": [IDS]}),
        ("no object", INFER, []),
        ("no inputs", INFER, {}),
        ("an input without a name", INFER, {"inputs": [{**IDS, "name": None}]}),
        ("an input without a shape", INFER, {"inputs": [{**IDS, "shape": None}]}),
        ("an input without a datatype", INFER, {"inputs": [{**IDS, "datatype": None}]}),
        ("an input without data", INFER, {"inputs": [{**IDS, "data": None}]}),
        ("a size that is negative", INFER, {"inputs": [{**IDS, "shape": [-1, 3]}]}),
        ("data that the shape does not hold", INFER, {"inputs": [{**IDS, "shape": [1, 4]}]}),
        ("data of another type", INFER, {"inputs": [{**IDS, "data": ["a", "b", "c"]}]}),
        ("an input that the model has not", INFER, {"inputs": [{**IDS, "name": "x"}]}),
        ("an output that the model has not", INFER, {"inputs": [IDS], "outputs": [{"name": "x"}]}),
        ("an id that is no string", INFER, {"id": 42, "inputs": [IDS]}),
        ("parameters that are no object", INFER, {"parameters": [], "inputs": [IDS]}),
        ("an unknown parameter", INFER, {"parameters": {"my_custom_parameter": 42}, "inputs": [IDS]}),
        ("an input's unknown parameter", INFER, {"inputs": [{**IDS, "parameters": {"a": 1}}]}),
        ("a content type that is read otherwise", INFER, {"parameters": {"content_type": "pd"}, "inputs": [IDS]}),
        ("an input's, too", INFER, {"inputs": [{**IDS, "parameters": {"content_type": "base64"}}]}),
        ("an output's unknown parameter", INFER, {"inputs": [IDS], "outputs": [{"name": "x", "parameters": {"a": 1}}]}),
    ],
)
def test_error_object(served, case, path, body):
    status, found = http(served, path, body)
    assert status in (400, 404) and fits(found, {"error": str}) and found["error"].endswith("."), (case, found)


@pytest.mark.parametrize("kind", DTYPES)
def test_tensor_data_type(served, stub, kind):
    """Each datatype is read; the model then says which it takes."""
    value = {"BOOL": True, "BYTES": "a"}.get(kind, 1)
    tensor = {"name": "max_output_len", "datatype": kind, "shape": [1, 1]}
    status, found = http(served, INFER, {"inputs": [IDS, {**tensor, "data": [value]}]})
    array = np.array([b"\1\0\0\0a"] if kind == "BYTES" else [1], None if kind == "BYTES" else DTYPES[kind])
    inputs = [pb.ModelInferRequest.InferInputTensor(**each) for each in (_without_data(IDS), tensor)]
    raw = [np.array(IDS["data"], "<u4").tobytes(), array.tobytes()]
    code = _code(stub.ModelInfer, pb.ModelInferRequest(model_name="mini-t5", inputs=inputs, raw_input_contents=raw))
    takes, words = "INT" in kind, "JSON has no values" if kind == "BF16" else "another kind"
    assert status == (200 if takes else 400) and (takes or words in found["error"]), found
    assert code == ("OK" if takes else "INVALID_ARGUMENT")


def _without_data(tensor: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tensor.items() if name != "data"}


def _code(call: Any, request: Any) -> str:
    return call.future(request).code().name


def as_json(message: Any) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True)


@pytest.mark.parametrize("version", ["", "1"])
def test_required_rpc(stub, version):
    assert stub.ServerLive(pb.ServerLiveRequest()).live is True
    assert stub.ServerReady(pb.ServerReadyRequest()).ready is True
    assert stub.ModelReady(pb.ModelReadyRequest(name="mini-t5", version=version)).ready is True
    assert fits(as_json(stub.ServerMetadata(pb.ServerMetadataRequest())), SERVER)
    found = stub.ModelMetadata(pb.ModelMetadataRequest(name="mini-t5", version=version))
    int64 = {**METADATA_TENSOR, "shape": [str]}  # as protobuf's JSON writes it
    assert fits(as_json(found), {**MODEL, "inputs": [int64], "outputs": [int64]}) and found.versions == ["1"]


def infer_request(**fields) -> pb.ModelInferRequest:
    contents = pb.InferTensorContents(uint_contents=IDS["data"])
    inputs = [pb.ModelInferRequest.InferInputTensor(**_without_data(IDS), contents=contents)]
    return pb.ModelInferRequest(**{"model_name": "mini-t5", "inputs": inputs, **fields})


def test_required_rpc_infer(stub):
    wanted = [pb.ModelInferRequest.InferRequestedOutputTensor(name="output_ids")]
    found = stub.ModelInfer(infer_request(id="42", model_version="1", outputs=wanted))
    assert (found.model_name, found.model_version, found.id) == ("mini-t5", "1", "42")
    [output], [raw] = found.outputs, found.raw_output_contents
    assert (output.name, output.datatype) == ("output_ids", "INT32")
    assert len(raw) == 4 * np.prod(output.shape) and not output.HasField("contents")
    assert len(stub.ModelInfer(infer_request()).outputs) > 1


@pytest.mark.parametrize(
    ("call", "request_", "code"),
    [
        ("ModelMetadata", pb.ModelMetadataRequest(name="gpt"), "NOT_FOUND"),
        ("ModelMetadata", pb.ModelMetadataRequest(), "NOT_FOUND"),
        ("ModelMetadata", pb.ModelMetadataRequest(name="mini-t5", version="7"), "NOT_FOUND"),
        ("ModelInfer", pb.ModelInferRequest(), "NOT_FOUND"),
        ("ModelInfer", infer_request(model_version="7"), "NOT_FOUND"),
        ("ModelInfer", infer_request(inputs=[]), "INVALID_ARGUMENT"),
        ("ModelInfer", infer_request(raw_input_contents=[b"", b""]), "INVALID_ARGUMENT"),
    ],
)
def test_rpc_error(stub, call, request_, code):
    future = getattr(stub, call).future(request_)
    assert future.code().name == code and future.details().endswith(".")
