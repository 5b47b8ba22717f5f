"""Triton's own gRPC clients against `vlm serve --grpc-port`: every call, streams, cancelled clients, limits."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc", reason="the extra grpc is not installed")

import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.kits.cli_kit import call
from tests.kits.servers.replica_kit import fronted
from tests.kits.servers.server_kit import EXAMPLES, aborts, alone, command, free_port, is_empty, load, serving, until
from vlm_app.server.kserve.grpc import messages
from vlm_app.server.repository.service import Service

TEXT = "translate English to German: The old ship is small."
SCENE, SIGN = EXAMPLES / "scene1.png", "Read the sign."
MODELS = ("mini-llava", "mini-t5")
FINAL = "triton_final_response"
STOPPED = "the server is stopping; ask again later."


# by replicas: the default tests ask them all this over HTTP, and by gRPC what test_serve_replicas does
PLACES = [pytest.param(serving, id="alone"), pytest.param(fronted, id="replicas", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=PLACES)
def served(request):
    with request.param(load(*MODELS), grpc_port=0, max_body_mb=4) as found:
        yield found
        for service in map(found.service, MODELS):
            until(lambda service=service: service.room.held == 0 and is_empty(service.pipeline))


@pytest.fixture(scope="module")
def client(served):
    with triton.InferenceServerClient(served.grpc_address) as found:
        yield found


@pytest.fixture(scope="module")
def stub(served):
    with grpc.insecure_channel(served.grpc_address, [("grpc.max_send_message_length", -1)]) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def tensor(name: str, values) -> triton.InferInput:
    array = np.asarray(values)
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array)


def text(*texts: str) -> triton.InferInput:
    return tensor("text_input", np.array([[each.encode()] for each in texts], object))


def code_of(error: InferenceServerException) -> str:
    return error.status().removeprefix("StatusCode.")


class Answers:
    """A stream's callback, and what has come of it."""

    def __init__(self, client: triton.InferenceServerClient, **options):
        self.items: queue.SimpleQueue = queue.SimpleQueue()
        client.start_stream(lambda result, error: self.items.put((result, error)), **options)

    def until_final(self) -> list[triton.InferResult]:
        """One request's responses."""
        found = []
        while not found or not found[-1].get_response().parameters[FINAL].bool_param:
            result, error = self.items.get()
            assert error is None, error
            found.append(result)
        return found


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog):
    """What clients do is no error of the server's."""
    yield
    assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@pytest.fixture
def stream(client):
    yield lambda **options: Answers(client, **options)
    client.stop_stream(cancel_requests=True)


# --- what tritonclient.grpc calls ---
def test_it_says_what_it_is_and_what_it_serves(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("mini-t5") and client.is_model_ready("mini-t5", "1")
    assert not client.is_model_ready("gpt") and not client.is_model_ready("mini-t5", "7")
    assert client.get_server_metadata().name == "vlm"
    shown = client.get_model_metadata("mini-t5", as_json=True)
    assert {"name": "output_ids", "datatype": "INT32", "shape": ["-1", "-1", "-1"]} in shown["outputs"]
    config = client.get_model_config("mini-t5").config
    assert config.max_batch_size == 8 and config.model_transaction_policy.decoupled
    assert [model.name for model in client.get_model_repository_index().models] == list(MODELS)


def test_ids_texts_and_images_give_what_the_model_gives(client):
    t5, llava = alone("mini-t5"), alone("mini-llava")
    ids = t5.request(TEXT).encoder_input_ids
    found = client.infer("mini-t5", [tensor("input_ids", np.array([ids], np.uint32))], request_id="7")
    assert found.get_response().id == "7" and found.get_response().model_version == "1"
    assert found.as_numpy("output_ids")[0, 0].tolist() == t5.generate(text=TEXT).token_ids
    image = tensor("image", np.array([[SCENE.read_bytes()]], object))
    wanted = [triton.InferRequestedOutput("text_output")]
    found = client.infer("mini-llava", [text(SIGN), image], outputs=wanted, compression_algorithm="gzip")
    assert found.as_numpy("text_output")[0, 0].decode() == llava.generate(images=[SCENE], prompt=SIGN).text
    assert found.as_numpy("output_ids") is None


def test_floats_come_in_bfloat16(client):
    t5 = alone("mini-t5")
    rows = np.random.default_rng(0).normal(size=(1, 3, t5.config.hidden_size)).astype(ml_dtypes.bfloat16)
    ids = tensor("input_ids", np.array([t5.request(TEXT).encoder_input_ids], np.uint32))
    logprobs = tensor("is_return_log_probs", np.ones((1, 1), bool))
    wide, own = (
        client.infer("mini-t5", [ids, tensor("request_prompt_embedding", each), logprobs]).as_numpy("output_log_probs")
        for each in (rows.astype(np.float32), rows)
    )
    assert wide.size
    np.testing.assert_array_equal(own, wide)


def test_an_asynchronous_call_answers_its_callback_and_can_be_cancelled(client, served, monkeypatch):
    answers: queue.SimpleQueue = queue.SimpleQueue()
    client.async_infer("mini-t5", [text(TEXT)], lambda result, error: answers.put((result, error)))
    result, error = answers.get()
    assert error is None and result.as_numpy("text_output")[0, 0] == b"Das alte Schiff ist klein."
    service = served.service("mini-t5")
    aborted = aborts(service.pipeline.llm, monkeypatch)
    running = client.async_infer("mini-t5", [text(TEXT)], lambda result, error: answers.put((result, error)))
    until(lambda: service.pipeline.llm.has_work)
    running.cancel()
    assert code_of(answers.get()[1]) == "CANCELLED"
    until(lambda: aborted and not service.room.held)


def test_a_stream_holds_all_tokens_so_far(client, stream):
    answers = stream()
    client.async_stream_infer("mini-t5", [text(TEXT)], request_id="a")
    found = answers.until_final()
    texts = [each.as_numpy("text_output")[0, 0].decode() for each in found]
    assert len(texts) > 1 and texts[-1] == alone("mini-t5").generate(text=TEXT).text
    lengths = [each.as_numpy("sequence_length")[0, 0] for each in found]
    assert lengths == sorted(set(lengths)) and {each.get_response().id for each in found} == {"a"}


def test_a_stream_ends_a_request_with_an_empty_response_where_asked(client, stream):
    answers = stream(compression_algorithm="gzip")
    client.async_stream_infer("mini-t5", [text(TEXT)], request_id="a", enable_empty_final_response=True)
    *found, last = answers.until_final()
    assert found[-1].as_numpy("text_output")[0, 0] == b"Das alte Schiff ist klein."
    assert not last.get_response().outputs and last.get_response().id == "a"


def test_many_requests_share_a_stream_and_a_wrong_one_costs_itself(client, stream):
    answers = stream()
    texts = [f"translate English to German: {day} May 2019" for day in range(1, 9)]
    for each in texts:
        client.async_stream_infer("mini-t5", [text(each)], request_id=each)
    client.async_stream_infer("gpt", [text(TEXT)])
    last, errors = {}, []
    while len(last) < len(texts) or not errors:
        result, error = answers.items.get()
        if error:
            errors.append(error)
        elif result.get_response().parameters[FINAL].bool_param:
            last[result.get_response().id] = result.as_numpy("text_output")[0, 0].decode()
    assert last == {each: alone("mini-t5").generate(text=each).text for each in texts}
    assert "not served here" in errors[0].message()


def test_streams_wait_for_room_and_leave_some_to_others():
    """Of requests that are sent at once none is refused, and another client's neither."""
    with (
        serving(load("mini-t5"), grpc_port=0, max_requests=8) as found,
        triton.InferenceServerClient(found.grpc_address) as client,
        triton.InferenceServerClient(found.grpc_address) as other,
    ):
        streams = [Answers(client), Answers(other)]
        for number in range(40):
            for each in (client, other):
                each.async_stream_infer("mini-t5", [text(TEXT), tensor("stream", [[number % 2 == 0]])])
        until(lambda: found.service("mini-t5").room.held)
        with triton.InferenceServerClient(found.grpc_address) as third:
            answers = [third.infer("mini-t5", [text(TEXT)]) for _ in range(3)]
        for answer in [*answers, *(each.until_final()[-1] for each in streams for _ in range(40))]:
            assert answer.as_numpy("text_output")[0, 0] == b"Das alte Schiff ist klein."
        client.stop_stream()
        other.stop_stream()


def test_a_strict_stream_ends_with_a_status(client, stream):
    answers = stream(headers={"triton_grpc_error": "true"})
    client.async_stream_infer("gpt", [text(TEXT)])
    assert code_of(answers.items.get()[1]) == "NOT_FOUND"


def test_beams_come_at_once(client, stream):
    answers = stream()
    client.async_stream_infer("mini-t5", [text(TEXT), tensor("beam_width", np.array([[3]], np.uint32))])
    [found] = answers.until_final()
    assert found.as_numpy("output_ids").shape[:2] == (1, 3)


def test_a_stream_that_is_left_ends_its_work(client, served, monkeypatch):
    service = served.service("mini-t5")
    aborted = aborts(service.pipeline.llm, monkeypatch)
    Answers(client)
    for _ in range(3):
        client.async_stream_infer("mini-t5", [text(TEXT)])
    until(lambda: service.room.held == 3)
    client.stop_stream(cancel_requests=True)
    until(lambda: len(set(aborted)) == 3 and not service.room.held)


def test_a_model_that_is_not_decoupled_gives_one_response_a_request_in_order(client, served, stream, monkeypatch):
    monkeypatch.setattr(served.service("mini-t5"), "decoupled", False)
    answers = stream()
    long = f"{TEXT} The new house is big."
    for each in (long, TEXT):
        client.async_stream_infer("mini-t5", [text(each)], request_id=each)
    found = [answers.until_final() for _ in range(2)]
    assert [len(each) for each in found] == [1, 1]
    assert [each.get_response().id for [each] in found] == [long, TEXT]


def test_the_asyncio_client(served):
    async def ask():
        async with triton_aio.InferenceServerClient(served.grpc_address) as client:
            assert await client.is_server_live() and await client.is_model_ready("mini-t5")
            found = await client.infer("mini-t5", [text(TEXT)])
            assert found.as_numpy("text_output")[0, 0] == b"Das alte Schiff ist klein."

            async def requests():
                yield {"model_name": "mini-t5", "inputs": [text(TEXT)], "request_id": "a"}

            return [(result, error) async for result, error in client.stream_infer(requests())]

    answers = asyncio.run(ask())
    assert all(error is None for _, error in answers) and len(answers) > 1
    assert answers[-1][0].as_numpy("text_output")[0, 0] == b"Das alte Schiff ist klein."


def test_statistics_count_what_was_asked(client):
    def stats():
        return client.get_inference_statistics("mini-t5").model_stats[0]

    before = stats()
    client.infer("mini-t5", [text(TEXT, TEXT)])
    with pytest.raises(InferenceServerException):
        client.infer("mini-t5", [text(TEXT)], timeout=1)
    after = stats()
    assert after.inference_count == before.inference_count + 2
    assert after.inference_stats.success.count == before.inference_stats.success.count + 1
    assert after.inference_stats.fail.count == before.inference_stats.fail.count + 1
    assert after.execution_count == sum(batch.compute_infer.count for batch in after.batch_stats)
    assert 2 in [batch.batch_size for batch in after.batch_stats]
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    times = {part: getattr(after.inference_stats, part).ns for part in parts}
    assert all(times.values()) and sum(times.values()) == pytest.approx(after.inference_stats.success.ns, rel=0.01)
    assert len(client.get_inference_statistics().model_stats) == len(MODELS)


def test_what_is_not_done_says_so(client):
    assert not client.get_system_shared_memory_status().regions
    assert not client.get_cuda_shared_memory_status().regions
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory()
    for ask in (
        lambda: client.register_system_shared_memory("a", "/a", 8),
        lambda: client.register_cuda_shared_memory("a", b"", 0, 8),
        lambda: client.get_trace_settings(),
        lambda: client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]}),
        lambda: client.get_log_settings(),
        lambda: client.update_log_settings({"log_verbose_level": 1}),
    ):
        with pytest.raises(InferenceServerException) as caught:
            ask()
        assert code_of(caught.value) == "UNIMPLEMENTED" and caught.value.message().endswith(".")
    for ask, code in ((client.load_model, "PERMISSION_DENIED"), (client.unload_model, "PERMISSION_DENIED")):
        with pytest.raises(InferenceServerException) as caught:
            ask("mini-t5")
        assert code_of(caught.value) == code


def test_a_request_that_does_not_stream_gets_one_response_in_a_stream(client, stream):
    """TensorRT-LLM's clients say so of each request."""
    answers = stream()
    for name, streams, count in (("stream", False, 1), ("stream", True, None), ("streaming", False, 1)):
        client.async_stream_infer("mini-t5", [text(TEXT), tensor(name, [[streams]])])
        found = answers.until_final()
        assert len(found) == count if count else len(found) > 1
        assert found[-1].as_numpy("text_output")[0, 0].decode() == alone("mini-t5").generate(text=TEXT).text


def test_answers_are_written_beside_the_event_loop(client, stream, monkeypatch):
    """One of a gigabyte would hold all others up."""
    threads, to_bytes = set[str](), messages.to_bytes

    def noted_to_bytes(array: np.ndarray) -> bytes:
        threads.add(threading.current_thread().name.partition("_")[0])
        return to_bytes(array)

    monkeypatch.setattr(messages, "to_bytes", noted_to_bytes)
    client.infer("mini-t5", [text(TEXT)])
    answers = stream()
    client.async_stream_infer("mini-t5", [text(TEXT)])
    answers.until_final()
    assert threads == {"asyncio"}  # of asyncio.to_thread


def test_the_client_of_tensorrt_llms_backend_is_answered(client):
    """Which sends all this of every request (inflight_batcher_llm_client.py)."""
    t5 = alone("mini-t5")
    ids = t5.request(TEXT).encoder_input_ids
    sent = {
        "input_ids": np.array([ids], np.int32), "input_lengths": np.array([[len(ids)]], np.int32),
        "request_output_len": np.array([[16]], np.int32), "beam_width": np.array([[1]], np.int32),
        "temperature": np.array([[1.0]], np.float32), "streaming": np.array([[False]]),
        "pad_id": np.array([[0]], np.int32),
        "end_id": np.array([[1]], np.int32), "runtime_top_k": np.array([[1]], np.int32),
        "runtime_top_p_min": np.array([[0.1]], np.float32), "early_stopping": np.array([[True]]),
    }  # fmt: skip
    inputs = [tensor(name, values) for name, values in sent.items()]
    found = client.infer("mini-t5", inputs, parameters={"Streaming": False})
    assert found.as_numpy("output_ids")[0, 0].tolist() == t5.generate(text=TEXT).token_ids


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"sequence_id": 5, "sequence_start": True}, "INVALID_ARGUMENT", "sequence_id"),
        ({"sequence_id": "a"}, "INVALID_ARGUMENT", "sequence_id"),
        ({"priority": 1}, "INVALID_ARGUMENT", "priority"),
        ({"timeout": 1}, "UNAVAILABLE", "timeout of 1 µs"),
        ({"timeout": -1}, "INVALID_ARGUMENT", "timeout"),
        ({"parameters": {"nonsense": 1.5}}, "INVALID_ARGUMENT", "nonsense is unknown"),
        ({"parameters": {"max_output_len": "5"}}, "INVALID_ARGUMENT", "max_output_len"),
        ({"model_version": "3"}, "NOT_FOUND", "version '3'"),
        ({"model_version": "9" * 5000}, "NOT_FOUND", "9' of mini-t5 is not there"),
        ({"outputs": [triton.InferRequestedOutput("logits")]}, "INVALID_ARGUMENT", "logits is no output"),
        ({"outputs": [triton.InferRequestedOutput("text_output", class_count=2)]}, "INVALID_ARGUMENT", "classes"),
    ],
)
def test_parameters_are_honoured_or_refused(client, options, code, words):
    with pytest.raises(InferenceServerException) as caught:
        client.infer("mini-t5", [text(TEXT)], **options)
    assert code_of(caught.value) == code and words in caught.value.message()
    assert caught.value.message().endswith(".") and len(caught.value.message()) < 1000


def test_options_go_as_parameters_too(client):
    found = client.infer("mini-t5", [text(TEXT, TEXT)], timeout=10**9, parameters={"max_output_len": 3})
    assert found.as_numpy("sequence_length").tolist() == [[3], [3]]


# --- messages as they are on the wire ---
def message(*inputs: dict, raw: tuple[bytes, ...] = (), **fields) -> pb.ModelInferRequest:
    made = [pb.ModelInferRequest.InferInputTensor(**each) for each in inputs]
    return pb.ModelInferRequest(model_name="mini-t5", inputs=made, raw_input_contents=raw, **fields)


def ids(**fields) -> dict:
    return {"name": "input_ids", "datatype": "UINT32", "shape": [1, 3], **fields}


def contents(**fields) -> pb.InferTensorContents:
    return pb.InferTensorContents(**fields)


def test_typed_contents_are_raw_ones(stub):
    prompt = alone("mini-t5").request(TEXT).encoder_input_ids
    typed = stub.ModelInfer(
        message(
            ids(shape=[1, len(prompt)], contents=contents(uint_contents=prompt)),
            {"name": "temperature", "datatype": "FP32", "shape": [1, 1], "contents": contents(fp32_contents=[1])},
            {"name": "max_output_len", "datatype": "INT64", "shape": [1], "contents": contents(int64_contents=[9])},
            {"name": "is_return_log_probs", "datatype": "BOOL", "shape": [1], "contents": contents(bool_contents=[1])},
        )
    )
    raw = stub.ModelInfer(
        message(
            ids(shape=[1, len(prompt)]),
            {"name": "max_output_len", "datatype": "INT32", "shape": [1, 1]},
            raw=(np.array(prompt, "<u4").tobytes(), (9).to_bytes(4, "little")),
        )
    )
    assert typed.raw_output_contents[0] == raw.raw_output_contents[0]
    assert [output.name for output in typed.outputs][-1] == "output_log_probs" and len(raw.outputs) == 2
    texts = stub.ModelInfer(
        message({"name": "text_input", "datatype": "BYTES", "shape": [1, 1],
                 "contents": contents(bytes_contents=[TEXT.encode()])})
    )  # fmt: skip
    assert texts.raw_output_contents[0][4:] == b"Das alte Schiff ist klein."


U4 = np.arange(3, dtype="<u4").tobytes()


def size(value: int) -> dict:
    return {"parameters": {"binary_data_size": pb.InferParameter(int64_param=value)}}


def test_the_size_of_raw_contents_may_stand_beside_them(stub):
    """kserve's InferInput.set_data_from_numpy says it whatever the protocol."""
    as_kserve = stub.ModelInfer(message(ids(**size(len(U4))), raw=(U4,)))
    assert as_kserve.raw_output_contents == stub.ModelInfer(message(ids(), raw=(U4,))).raw_output_contents


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (message(), "nothing to work on"),
        (message(ids()), "0 values"),
        (message(ids(), raw=(U4, U4)), "2 entries for 1 input;"),
        (message(ids(), raw=(U4[:-1],)), "no multiple of 4"),
        (message(ids(), raw=(U4[:-4],)), "2 values"),
        (message(ids(shape=[-1, 3]), raw=(U4,)), "needs a shape"),
        (message(ids(shape=[2**62, 2**62]), raw=(U4,)), "input_ids"),
        (message(ids(datatype="FP8"), raw=(U4,)), "'FP8'"),
        (message(ids(datatype="BF16")), "is BF16, of which JSON has no values; send bytes"),
        (message(ids(datatype=""), raw=(U4,)), "datatype"),
        (message(ids(contents=contents(uint_contents=[1, 2, 3])), raw=(U4,)), "beside raw_input_contents"),
        (message(ids(contents=contents(int_contents=[1, 2, 3]))), "its place is uint_contents"),
        (message(ids(datatype="FP16", contents=contents(fp32_contents=[1]))), "its place is raw_input_contents"),
        (message(ids(datatype="INT8", contents=contents(int_contents=[1, 2, 300]))), "not INT8"),
        (message(ids(), ids(), raw=(U4, U4)), "given twice"),
        (message({"name": "text_input", "datatype": "BYTES", "shape": [1]}, raw=(b"\xff\xff\xff\xff",)), "ends within"),
        (message({"name": "text_input", "datatype": "BYTES", "shape": [2]}, raw=(b"\0" * 4,)), "1 values"),
        (message(ids(parameters={"shared_memory_region": pb.InferParameter(string_param="a")})), "shared memory"),
        (message(ids(parameters={"binary_data_size": pb.InferParameter(int64_param=9)}), raw=(U4,)), "HTTP's"),
        (message(ids(**size(12), contents=contents(uint_contents=[1, 2, 3]))), "HTTP's"),
        (message(ids(), raw=(U4,), parameters={"timeout": pb.InferParameter()}), "timeout"),
        (message(ids(), raw=(U4,), parameters={"triton_other": pb.InferParameter(bool_param=True)}), "triton_other"),
        (message(ids(), raw=(U4,), parameters={"timeout": pb.InferParameter(uint64_param=2**64 - 1)}), "timeout"),
    ],
)
def test_what_does_not_fit_is_refused(stub, made, words):
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(made)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT, caught.value
    assert words in caught.value.details() and caught.value.details().endswith(".")


def test_any_bytes_as_a_message(served):
    generator, codes = np.random.default_rng(0), set()
    with grpc.insecure_channel(served.grpc_address) as channel:
        for method in ("ModelInfer", "ModelMetadata", "RepositoryIndex", "Nonsense"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            for size in range(12):
                codes.add(call.future(generator.bytes(size)).code())
        messages = [generator.bytes(size) for size in range(12)]
        answers = list(channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter(messages)))
    assert len(answers) == len(messages)
    assert codes <= {grpc.StatusCode[name] for name in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED")}


def test_a_message_over_the_limit_is_refused_however_small_it_came(served, stub):
    big = message({"name": "text_input", "datatype": "BYTES", "shape": [1]}, raw=(b"\0" * (5 << 20),))
    for compression in (None, grpc.Compression.Gzip):
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(big, compression=compression)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def field(number: int, content: bytes) -> bytes:
    """A field of bytes as protobuf writes it."""
    size, written = len(content), b""
    while size > 127:
        size, written = size >> 7, written + bytes([size & 127 | 128])
    return bytes([number << 3 | 2]) + written + bytes([size]) + content


def test_probes_ask_whether_it_takes_calls(served):
    with grpc.insecure_channel(served.grpc_address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"") == check(field(1, b"inference.GRPCInferenceService")) == b"\x08\x01"  # SERVING
        with pytest.raises(grpc.RpcError) as caught:
            check(field(1, b"mini-t5"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (field(5, b"") * 10**6, "4,096 fields"),
        (bytes([9 << 3 | 3]) + field(6, b"") * 10**6 + bytes([9 << 3 | 4]), "4,096 fields"),
        (field(5, field(4, b"") * 10**6), "4,096 fields"),
        (field(1, b"mini-t5") + field(5, field(3, b"\1" * 10**6)), "1,000,000 sizes"),
        (field(1, b"mini-t5") + field(5, field(2, b"INT8") + field(5, field(2, b"\1" * 3 * 10**6))),
         "2,000,000 values"),
        (field(1, b"mini-t5") + field(5, field(2, b"BYTES") + field(5, field(8, b"") * 65_537)), "65,536 of BYTES"),
        (field(1, b"mini-t5") + field(5, field(2, b"INT8") + field(5, b"\x10\1" * 65_537)), "65,536 of BYTES"),
        (field(1, b"mini-t5") + field(5, field(3, b"\1" * 10**6)) * 3, "2,000,000 values"),
    ],
    ids=["inputs", "outputs in a group", "parameters", "shape", "numbers", "strings", "unpacked", "shapes"],
)  # fmt: skip
def test_a_message_of_many_parts_is_refused_before_it_grows(served, made, words):
    with grpc.insecure_channel(served.grpc_address, [("grpc.max_send_message_length", -1)]) as channel:
        answer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer").future(made)
        assert answer.code() is grpc.StatusCode.INVALID_ARGUMENT and words in answer.details()
        [found] = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(iter([made]))
        assert words.encode() in found


def test_what_is_not_sent_in_time_is_ended(served, monkeypatch):
    """Half-sent requests, and streams in which nothing happens, hold no place for ever."""
    monkeypatch.setattr("vlm_app.server.kserve.grpc.interceptors.RECEIVE_SECONDS", 0.2)
    monkeypatch.setattr("vlm_app.server.kserve.grpc.streams.IDLE_SECONDS", 0.2)
    silent, said = threading.Event(), []

    def nothing():
        silent.wait()
        yield from ()

    with grpc.insecure_channel(served.grpc_address) as channel:
        for kind, call in ((channel.stream_unary, "ModelInfer"), (channel.stream_stream, "ModelStreamInfer")):
            with pytest.raises(grpc.RpcError) as caught:
                list(kind(f"/inference.GRPCInferenceService/{call}")(nothing()) or ())
            said.append(caught.value)
    silent.set()
    assert [error.code() for error in said] == [grpc.StatusCode.DEADLINE_EXCEEDED] * 2
    assert all(error.details().endswith(".") for error in said)


def test_a_stream_holds_no_more_bytes_than_a_message_may_have(client, served, stream, monkeypatch):
    service, held = served.service("mini-llava"), []
    step = service.pipeline.llm.step
    monkeypatch.setattr(
        service.pipeline.llm,
        "step",
        lambda **options: (held.append(service.room.held), time.sleep(0.05), step(**options))[2],
    )
    picture = tensor("image", np.zeros((1, 700, 700, 3), np.uint8))  # 1.5 MB of 4
    answers = stream()
    for _ in range(5):
        client.async_stream_infer("mini-llava", [text(SIGN), picture, tensor("max_output_len", np.array([[3]], "u4"))])
    ended = 0
    while ended < 5:
        result, error = answers.items.get()
        assert error is None, error
        ended += result.get_response().parameters[FINAL].bool_param
    assert 1 < max(held) < 3


def test_a_deadline_ends_the_work(served, stub, monkeypatch):
    service = served.service("mini-t5")
    aborted = aborts(service.pipeline.llm, monkeypatch)
    asked = message({"name": "text_input", "datatype": "BYTES", "shape": [1, 1],
                     "contents": contents(bytes_contents=[TEXT.encode()])})  # fmt: skip
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(asked, timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    until(lambda: aborted and not service.room.held)


# --- the server as a whole ---
def test_sixteen_clients_at_once_get_what_one_gets(served):
    days = [f"translate English to German: {day} May 2019" for day in range(1, 17)]

    def ask(day: str) -> list[str]:
        with triton.InferenceServerClient(served.grpc_address) as client:
            return [client.infer("mini-t5", [text(day)]).as_numpy("text_output")[0, 0].decode() for _ in range(3)]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, days))
    assert found == [[alone("mini-t5").generate(text=day).text] * 3 for day in days]


def test_a_key_is_needed_but_for_health(monkeypatch):
    options = {"grpc_port": 0, "api_key": "SECRET", "max_requests": 1}
    with serving(load("mini-t5"), **options) as found, triton.InferenceServerClient(found.grpc_address) as client:
        assert client.is_server_live() and client.is_server_ready()
        with grpc.insecure_channel(found.grpc_address) as channel, monkeypatch.context() as patched:
            patched.setattr(Service, "ready", False)
            assert channel.unary_unary("/grpc.health.v1.Health/Check")(b"") == b"\x08\x02"  # NOT_SERVING
        for headers in ({}, {"authorization": "Bearer WRONG"}, {"authorization": "SECRET"}):
            with pytest.raises(InferenceServerException) as caught:
                client.infer("mini-t5", [text(TEXT)], headers=headers)
            assert code_of(caught.value) == "UNAUTHENTICATED"
            with pytest.raises(InferenceServerException):
                client.get_model_metadata("mini-t5", headers=headers)
        key = {"authorization": "bearer SECRET"}
        found_text = client.infer("mini-t5", [text(TEXT)], headers=key).as_numpy("text_output")
        assert found_text[0, 0] == b"Das alte Schiff ist klein."
        assert code_of(Answers(client).items.get()[1]) == "UNAUTHENTICATED"
        client.stop_stream(cancel_requests=True)
        with pytest.raises(InferenceServerException) as caught, found.service("mini-t5").room.acquire([1])[0]:
            client.infer("mini-t5", [text(TEXT)], headers=key)
        assert code_of(caught.value) == "RESOURCE_EXHAUSTED"


@pytest.mark.slow
def test_the_command_says_where_it_listens_and_lets_calls_end(tmp_path):
    port = free_port()
    with (
        command("mini-t5", "--grpc-port", str(port)) as (process, _),
        triton.InferenceServerClient(f"127.0.0.1:{port}") as client,
    ):
        assert client.is_server_live()  # it was said
        taken = call("serve", "mini-t5", "--port", "0", "--grpc-port", port, "--device", "cpu")
        assert taken.exit_code == 2 and "give another --host or --grpc-port" in taken.stderr
        answers: queue.SimpleQueue = queue.SimpleQueue()
        long = [
            text(TEXT),
            tensor("max_output_len", np.array([[90]], np.uint32)),
            tensor("min_length", np.array([[90]], np.uint32)),
        ]
        client.async_infer("mini-t5", long, lambda result, error: answers.put((result, error)))
        until(lambda: client.get_inference_statistics("mini-t5").model_stats[0].last_inference)
        process.terminate()
        result, error = answers.get()
        assert error is None and result.as_numpy("sequence_length")[0, 0] > 80
        assert process.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--replicas", "1")], ids=["alone", "replica"])
def test_a_stream_that_nothing_runs_in_does_not_keep_the_server(more):
    port = free_port()
    with (
        command("mini-t5", "--grpc-port", str(port), "--drain-seconds", "1800", *more) as (process, _),
        triton.InferenceServerClient(f"127.0.0.1:{port}") as client,
    ):
        answers = Answers(client)
        client.async_stream_infer("mini-t5", [text(TEXT)])
        answers.until_final()
        process.terminate()
        result, error = answers.items.get()
        assert result is None and (code_of(error), error.message()) == ("UNAVAILABLE", STOPPED)
        assert process.wait() == 0
