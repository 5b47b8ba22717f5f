"""What is read of a request is bounded by what its bytes say, before anything is made of them."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from tritonclient.grpc import service_pb2 as pb

from vlm.errors import InputError, LimitError
from vlm_app.core.names import MAX_SENTENCE, MAX_WORD
from vlm_app.server.core import errors
from vlm_app.server.http.json_bodies import parse_json
from vlm_app.server.kserve.grpc import messages
from vlm_app.server.kserve.grpc.wire import is_too_large
from vlm_app.server.tensors import values as tensor_values
from vlm_app.server.tensors import wire as tensors
from vlm_app.server.tensors.parameters import with_options
from vlm_app.server.tensors.specs import IDS_IN, MAX_BATCH, TEXT_IN, check_tensors
from vlm_app.triton.backend import response

PATH = "/v1/completions"


def read(datatype: str, shape: list, data: list) -> np.ndarray:
    body = json.dumps({"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}]})
    return tensors.read(body.encode(), None).inputs["x"]


@pytest.mark.parametrize(
    ("datatype", "shape", "data", "words"),
    [
        ("UINT32", [2**31 - 1] * 1000, [], "1,000 axes; give at most 8"),
        ("UINT32", [0, 2**30, 2**30], [], "more values than are taken"),
        ("BYTES", [1, 70_000], [], "at most 65,536 elements"),
        ("FP32", [1, 3], ["long" * 1000, 1.0, 2.0], "not FP32"),
        ("UINT32", [1, 2], [1, 2.0], "not UINT32"),
        ("UINT32", [1, 1], [True], "not UINT32"),
        ("BOOL", [1, 1], [1], "not BOOL"),
        ("UINT32", [3], [[1, 2], [3]], "not UINT32"),
        ("UINT32", [3], [[1, 2], 3], "not UINT32"),
        ("UINT32", [1], [2**64], "not UINT32"),
        ("INT64", [2], [2**63, -1], "not INT64"),
        ("BYTES", [1], [5], "not BYTES"),
        ("BF16", [1], [1.0], r"BF16, of which JSON has no values; send bytes .* or FP32"),
    ],
)
def test_tensors_that_are_refused(datatype, shape, data, words):
    with pytest.raises(InputError, match=words):
        read(datatype, shape, data)


def test_tensors_that_are_read():
    assert read("UINT32", [2, 2], [[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]
    assert read("FP32", [2], [1, float("nan")])[0] == 1 and read("BOOL", [1], [True]).tolist() == [True]
    assert read("INT64", [1], [-(2**63)]).tolist() == [-(2**63)]
    assert read("FP16", [1, 0, 3], [[]]).shape == (1, 0, 3) and read("BYTES", [1], ["a"]).tolist() == [b"a"]


def sent_bytes(data: bytes) -> np.ndarray:
    entry = {"name": "x", "datatype": "BF16", "shape": [2, 2], "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [entry]}).encode()
    return tensors.read(head + data, str(len(head))).inputs["x"]


def test_bfloat16_is_widened():
    """As Triton's clients send it."""
    values = np.array([[1.0, -0.15625], [3e38, np.inf]], ml_dtypes.bfloat16)
    found = sent_bytes(values.tobytes())
    assert found.dtype == np.float32 and found.tolist() == values.astype(np.float32).tolist()
    with pytest.raises(InputError, match="input x has 7 bytes, which is no multiple of 2"):
        sent_bytes(values.tobytes()[:7])


def test_bfloat16_is_sent():
    values = np.array([[1.0, -0.15625], [1 / 3, 0.0]], np.float32)
    sent = tensor_values.as_bf16(values)
    assert tensor_values.datatype_of(sent) == "BF16"
    assert tensor_values.to_bytes(sent) == values.astype(ml_dtypes.bfloat16).tobytes()
    with pytest.raises(InputError, match="output x is BF16, of which JSON has no values; ask for it in binary"):
        tensor_values.json_values("x", sent, lambda value: value)


def test_values_stay_where_a_configuration_of_tritons_declares_bfloat16():
    """Python there has no such type."""
    values = np.array([0.75, -2.0], np.float32)
    config = {"output": [{"name": "x", "data_type": "TYPE_BF16"}]}
    utils = SimpleNamespace(Tensor=lambda name, array: array, InferenceResponse=lambda tensors: tensors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vlm_app.triton.backend.utils", lambda: utils)
        assert response({"x": values}, config)[0].tolist() == [0.75, -2.0]


MANY = {
    "numbers": b"[" + b"1," * 2_000_001 + b"1]",
    "lists": b"[" * 200_001,
    "objects": b"[{}" + b",{}" * 200_000 + b"]",
    "fields": b'{"a":1' + b',"b":1' * 200_000 + b"}",
}


@pytest.mark.parametrize("body", MANY.values(), ids=MANY)
def test_json_of_more_values_than_are_parsed(monkeypatch, body):
    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(LimitError, match="2,000,000 values and 200,000 lists, objects and fields; send fewer"):
        parse_json(body)


def test_a_list_of_none_is_no_list():
    ids, words = np.zeros((2, 3), np.uint32), np.zeros((2, 2, 0), np.int32)
    assert check_tensors({"input_ids": ids, "bad_words_list": words}, IDS_IN)[1].keys() == {"input_ids"}
    text, images = np.full((1, 1), b"a", object), np.zeros((1, 0), object)
    assert check_tensors({"text_input": text, "image": images}, TEXT_IN)[1].keys() == {"text_input"}
    for name, array in {
        "input_ids": ids[:, :0],
        "pixel_values": np.zeros((2, 1, 3, 0, 64), np.float32),
        "request_prompt_embedding": np.zeros((2, 5, 0), np.float32),
    }.items():
        with pytest.raises(InputError, match=f"{name} has shape .* which holds nothing"):
            check_tensors({"input_ids": ids, name: array}, IDS_IN)
    with pytest.raises(InputError, match=r"image has shape \[1, 0, 8, 3\], which holds nothing"):
        check_tensors({"text_input": text, "image": np.zeros((1, 0, 8, 3), np.uint8)}, TEXT_IN)
    with pytest.raises(InputError, match=r"temperature has shape \[2, 0\]; give \[2, 1\]"):
        check_tensors({"input_ids": ids, "temperature": np.zeros((2, 0), np.float32)}, IDS_IN)


def test_batches_and_lists_of_words_have_a_size():
    with pytest.raises(LimitError, match="4,097 rows; send at most 4,096 at once"):
        check_tensors({"input_ids": np.zeros((MAX_BATCH + 1, 1), np.uint32)}, IDS_IN)
    words = np.zeros((1, 2, 1025), np.int32)
    with pytest.raises(LimitError, match="its last size may be 1,024 at most"):
        check_tensors({"input_ids": np.zeros((1, 1), np.uint32), "stop_words_list": words}, IDS_IN)


def test_a_parameter_is_not_repeated_for_more_rows_than_a_batch_may_have():
    rows = read("UINT32", [2**22, 0], [])  # a few bytes say so
    with pytest.raises(LimitError, match="4,194,304 rows; send at most 4,096 at once"):
        with_options({"input_ids": rows}, {"temperature": 1.0})


def test_a_sentence_quotes_no_more_than_a_part_of_what_was_sent():
    said = errors.sentence(InputError(f"{'x' * 10**6} is unknown."), PATH)
    assert len(said) <= MAX_WORD + len(" is unknown.") and said.startswith("xxx") and said.endswith("x is unknown.")
    assert len(errors.sentence(LimitError("ab " * 10**6 + "are too many."), PATH)) == MAX_SENTENCE


def test_a_sentence_is_one_line_of_what_can_be_seen():
    said = errors.sentence(HTTPException(404, "model 'a\nb\x1b[31m\u2028\ud800' is not here"), PATH)
    assert said == r"model 'a\nb\x1b[31m\u2028\ud800' is not here."
    place = {"loc": ("body", "z\n\nTraceback"), "msg": "is wrong", "type": "missing"}
    error = errors.body(RequestValidationError([place]), "/v1")["error"]
    assert (error["message"], error["param"]) == (r"z\n\nTraceback: is wrong.", r"z\n\nTraceback")
    for within, told in (("constrained-str",), "stop"), ((0, "list[str]"), "stop.0"), (("abc", "[key]"), "stop.abc"):
        place = {"loc": ("body", "stop", *within), "msg": "is wrong", "type": "missing"}
        assert errors.sentence(RequestValidationError([place]), PATH) == f"{told}: is wrong."


def test_pixels_in_place_of_files_are_a_picture_a_row():
    pictures = np.zeros((2, 5, 4, 3), np.uint8)
    assert check_tensors({"image": pictures}, TEXT_IN)[1]["image"] is pictures
    for shape in ((1, 4), (4, 1), (2, 2), (2,), (2, 4, 3), (2, 1, 5, 4, 3)):
        words = rf"UINT8 \[{shape[0]}, height, width, 3\], or their files as BYTES \[{shape[0]}, images\]\.$"
        with pytest.raises(InputError, match=words):
            check_tensors({"image": np.zeros(shape, np.uint8)}, TEXT_IN)


def test_large_outputs_are_written_in_pieces():
    """Else no other thread has its turn: a second of the event loop for two million values."""
    request = tensors.InferRequest("a", {}, None, False, {})
    outputs = {"x": np.arange(10_000, dtype=np.float32), "text": np.array([b"a", "ä".encode()], object)}
    body = json.loads(tensors.write(("m", "1"), request, outputs)[0])
    assert body["outputs"][0]["data"] == outputs["x"].tolist() and body["outputs"][1]["data"] == ["a", "ä"]
    assert body["id"] == "a" and body["model_name"] == "m"
    parts = [*tensor_values.json_values("x", np.zeros(2**18, np.float32), float)]
    assert max(map(len, parts)) < 2**15
    large = np.broadcast_to(np.float32(0), 2**24)
    with pytest.raises(LimitError, match=r"^output x has 16,777,216 values, as JSON at most 8,388,608 are sent; ask"):
        tensors.write(("m", "1"), request, {"x": large})
    assert len(tensors.write(("m", "1"), replace(request, binary=True), {"x": large})[0]) > 2**26


@pytest.mark.parametrize("size", [0, 1, 127, 128, 2**14 - 1, 2**14, 2**21])
def test_a_grpc_message_is_serialized_before_the_event_loop_has_it(size):
    """Of a large one protobuf would make all others wait."""
    request = tensors.InferRequest("a", {}, None, False, {})
    outputs = {"bits": np.arange(size, dtype=np.uint8), "text": np.array([["ä".encode(), b""]], object)}
    raw = [outputs["bits"].tobytes(), b"\2\0\0\0\xc3\xa4\0\0\0\0"]
    whole = pb.ModelInferResponse(model_name="m", model_version="1", id="a", raw_output_contents=raw)
    whole.outputs.add(name="bits", datatype="UINT8", shape=[size])
    whole.outputs.add(name="text", datatype="BYTES", shape=[1, 2])
    assert pb.ModelInferResponse.FromString(messages.write(("m", "1"), request, outputs)) == whole
    for final in (True, False):
        streamed = messages.write_streamed(("m", "1"), request, outputs, final=final)
        whole.parameters["triton_final_response"].bool_param = final
        assert pb.ModelStreamInferResponse.FromString(streamed) == pb.ModelStreamInferResponse(infer_response=whole)


def test_a_grpc_message_of_more_than_protobuf_reads(monkeypatch):
    monkeypatch.setattr(messages, "MAX_MESSAGE", 2**21)
    request, outputs = tensors.InferRequest("a", {}, None, False, {}), {"x": np.zeros(2**19, np.float32)}
    with pytest.raises(
        LimitError, match=r"^the outputs take 2 MiB, 2 is what a message of gRPC has at most; ask for fe"
    ):
        messages.write(("m", "1"), request, outputs)
    assert messages.write(("m", "1"), request, {"x": outputs["x"][:-64]})


@pytest.mark.parametrize(("kind", "size"), [("int64_contents", 10), ("fp32_contents", 4), ("fp64_contents", 8)])
def test_contents_are_counted_by_their_values(kind, size):
    """However many bytes one takes."""
    value = -1 if kind == "int64_contents" else 1.0
    for count, refused in (2_000_000, False), (2_000_001, True):
        tensor = pb.ModelInferRequest.InferInputTensor(name="x")
        getattr(tensor.contents, kind).extend([value] * count)
        message = pb.ModelInferRequest(inputs=[tensor]).SerializeToString()
        assert len(message) > count * size and is_too_large(message) is refused


def test_texts_among_contents_are_counted_one_by_one():
    texts = pb.InferTensorContents(bytes_contents=[b"\1" * 100] * 65_536)
    request = pb.ModelInferRequest(inputs=[pb.ModelInferRequest.InferInputTensor(contents=texts)])
    assert not is_too_large(request.SerializeToString())
    texts.bytes_contents.append(b"")
    request = pb.ModelInferRequest(inputs=[pb.ModelInferRequest.InferInputTensor(contents=texts)])
    assert is_too_large(request.SerializeToString())
