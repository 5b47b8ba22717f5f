"""NVIDIA's Triton Inference Server runs what `vlm export-triton` writes, and gives what the engine gives by itself."""

from __future__ import annotations

import json
import queue
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc", reason="the extra triton is not installed")
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from tests.kits.cli_kit import call
from tests.kits.servers.real_triton import Triton
from tests.kits.servers.server_kit import EXAMPLES, alone
from tests.kits.servers.triton_kit import ids_of, texts

pytestmark = pytest.mark.slow

TEXTS = [
    "translate English to German: The old ship is small.",
    "translate English to German: 3 May 2019",
    "translate English to German: The new house is old.",
]
SCENE, PAGE, SIGN = EXAMPLES / "scene1.png", EXAMPLES / "page.png", "Read the sign."
EXPORTS = [("mini-t5",), ("mini-llava",), ("mini-nougat",), ("mini-t5", "--stream"), ("mini-llava", "--stream")]
CLIENTS = 16


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The addresses of one server with all of these models, for HTTP and gRPC."""
    folder = tmp_path_factory.mktemp("triton")
    triton, repository = Triton.fetched(folder), folder / "repository"
    for model, *options in EXPORTS:
        name = f"{model}-stream" if options else model
        line = ("export-triton", model, "-o", repository, "--name", name, "--device", "cpu", "--max-batch-size", 16)
        result = call(*line, *options)
        assert result.exit_code == 0, result.stderr
    with triton.serving(repository, folder / "log") as addresses:
        yield addresses


@pytest.fixture(scope="module", params=[http, grpc], ids=["http", "grpc"])
def client(request, served):
    address = served[0] if request.param is http else served[1]
    with request.param.InferenceServerClient(address) as made:
        yield request.param, made


def tensors(protocol, arrays: dict[str, np.ndarray]) -> list:
    made = []
    for name, array in arrays.items():
        tensor = protocol.InferInput(name, array.shape, _datatype(array))
        tensor.set_data_from_numpy(array)
        made.append(tensor)
    return made


def _datatype(array: np.ndarray) -> str:
    from tritonclient.utils import np_to_triton_dtype

    return np_to_triton_dtype(array.dtype)


def text_of(found) -> list[str]:
    """The best text of each row."""
    return [row[0].decode() for row in found.as_numpy("text_output")]


def test_all_parts_are_ready(client):
    _, asked = client
    assert asked.is_server_ready()
    for model, *options in EXPORTS:
        name = f"{model}-stream" if options else model
        assert all(asked.is_model_ready(f"{name}{part}") for part in ("", "-preprocessing", "-engine"))


def test_texts(client):
    protocol, asked = client
    found = asked.infer("mini-t5", tensors(protocol, {"text_input": texts(*TEXTS)}))
    assert text_of(found) == [alone("mini-t5").generate(text=text).text for text in TEXTS]


def test_images_and_pages(client):
    protocol, asked = client
    scene = {"text_input": texts(SIGN), "image": np.array([[SCENE.read_bytes()]], object)}
    found = asked.infer("mini-llava", tensors(protocol, scene))
    assert text_of(found) == [alone("mini-llava").generate(images=[SCENE], prompt=SIGN).text]
    page = {"image": np.array([[PAGE.read_bytes()]], object), "max_output_len": np.array([[24]], np.uint32)}
    found = asked.infer("mini-nougat", tensors(protocol, page))
    assert text_of(found) == [alone("mini-nougat").generate(images=[PAGE], max_new_tokens=24).text]


@pytest.mark.parametrize("beams", [1, 3])
def test_fastertransformers_tensors(client, beams):
    """A ragged batch; of a search the log-probabilities, too."""
    protocol, asked = client
    given = {**ids_of(*TEXTS), "beam_width": np.full((3, 1), beams, np.uint32)}
    found = asked.infer("mini-t5-engine", tensors(protocol, given))
    ids, lengths, sums = (found.as_numpy(name) for name in ("output_ids", "sequence_length", "cum_log_probs"))
    for row, text in enumerate(TEXTS):
        best = alone("mini-t5").generate(text=text, num_beams=beams, num_return_sequences=beams)
        for beam, output in enumerate((best, *best.alternatives)):
            assert ids[row, beam, : lengths[row, beam]].tolist() == output.token_ids
            assert sums[row, beam] == pytest.approx(output.cumulative_logprob, abs=1e-3)


def test_streams_grow_to_the_whole_answer(served):
    with grpc.InferenceServerClient(served[1]) as asked:
        for name, arrays, whole in (
            ("mini-t5-stream", {"text_input": texts(TEXTS[0])}, alone("mini-t5").generate(text=TEXTS[0])),
            (
                "mini-llava-stream",
                {"text_input": texts(SIGN), "image": np.array([[SCENE.read_bytes()]], object)},
                alone("mini-llava").generate(images=[SCENE], prompt=SIGN),
            ),
        ):
            found = _streamed(asked, name, arrays)
            assert len(found) > 1 and found[-1] == whole.text
            lengths = [len(text) for text in found]
            assert lengths == sorted(lengths) and lengths[0] < lengths[-1]


def _streamed(asked, name: str, arrays: dict[str, np.ndarray]) -> list[str]:
    """The texts of a request's responses."""
    answers: queue.Queue = queue.Queue()
    asked.start_stream(lambda result, error: answers.put((result, error)))
    try:
        asked.async_stream_infer(name, tensors(grpc, arrays), enable_empty_final_response=True)
        found = []
        while True:
            result, error = answers.get()
            if error is not None:
                raise error
            said = result.get_response()
            found += text_of(result) if said.outputs else []
            if said.parameters["triton_final_response"].bool_param:
                return found
    finally:
        asked.stop_stream()


def test_sixteen_clients_at_once(served):
    """Asks several models over both protocols at once; nobody gets another's answer."""
    words = [f"translate English to German: The old ship has {number} rooms." for number in range(CLIENTS)]

    def ask(number: int) -> list[str]:
        protocol = (http, grpc)[number % 2]
        with protocol.InferenceServerClient(served[number % 2]) as own:
            scene = {"text_input": texts(SIGN), "image": np.array([[(EXAMPLES / _scene(number)).read_bytes()]], object)}
            given = [("mini-t5", {"text_input": texts(words[number])}), ("mini-llava", scene)]
            return [text_of(own.infer(name, tensors(protocol, arrays)))[0] for name, arrays in given]

    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(ask, range(CLIENTS)))
    scenes = {n: alone("mini-llava").generate(images=[EXAMPLES / f"scene{n}.png"], prompt=SIGN).text for n in (1, 2)}
    for number, (text, sign) in enumerate(found):
        assert text == alone("mini-t5").generate(text=words[number]).text
        assert sign == scenes[1 + number // 2 % 2]


def _scene(number: int) -> str:
    return f"scene{1 + number // 2 % 2}.png"


def test_a_mistake_costs_its_own_request(served, client):
    protocol, asked = client
    for name, arrays, words in (
        ("mini-t5-engine", {"input_ids": np.full((1, 4), 10**6, np.uint32)}, "outside the vocabulary"),
        ("mini-t5", {"text_input": texts(" ")}, "the text is empty"),
        ("mini-t5", {"text_input": texts("a " * 3000)}, "shorten"),
        ("mini-llava", {"text_input": texts(SIGN), "image": np.array([[b"no image"]], object)}, "no image"),
    ):
        with pytest.raises(InferenceServerException, match=words) as caught:
            asked.infer(name, tensors(protocol, arrays))
        assert "Traceback" not in str(caught.value)
    with grpc.InferenceServerClient(served[1]) as own, pytest.raises(InferenceServerException, match="text is empty"):
        _streamed(own, "mini-t5-stream", {"text_input": texts("")})
    found = asked.infer("mini-t5", tensors(protocol, {"text_input": texts(TEXTS[0])}))
    assert text_of(found) == [alone("mini-t5").generate(text=TEXTS[0]).text]


def test_generate_takes_flat_json(served):
    body = json.dumps({"text_input": TEXTS[0]}).encode()
    with urllib.request.urlopen(f"http://{served[0]}/v2/models/mini-t5/generate", body) as answer:
        assert json.load(answer)["text_output"] == alone("mini-t5").generate(text=TEXTS[0]).text
