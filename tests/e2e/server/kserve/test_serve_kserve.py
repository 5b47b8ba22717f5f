"""Triton's own HTTP client against `vlm serve`: FasterTransformer's tensors, texts and images, JSON and binary."""

from __future__ import annotations

import asyncio
import base64
import json

import ml_dtypes
import numpy as np
import pytest
import torch
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from PIL import Image
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.kits.servers.server_kit import EXAMPLES, alone, data_uri

TEXTS = ["translate English to German: The old ship is small.", "translate English to German: 3 May 2019"]
SCENE, SIGN = EXAMPLES / "scene1.png", "Read the sign."
MODELS = ("mini-llava", "mini-t5", "mini-nougat")


@pytest.fixture(scope="module")
def client(served):
    with triton.InferenceServerClient(served.address) as found:
        yield found


def tensor(name: str, values, binary: bool = True) -> triton.InferInput:
    array = np.asarray(values)
    made = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array, binary_data=binary)


def of_ids(pipeline, texts: list[str], **scalars) -> dict[str, np.ndarray]:
    """A padded batch, every scalar for all of its rows."""
    ids = [pipeline.request(text).encoder_input_ids for text in texts]
    table = np.zeros((len(ids), max(map(len, ids))), np.uint32)
    for row, own in zip(table, ids, strict=True):
        row[: len(own)] = own
    found = {"input_ids": table, "sequence_length": np.array([[len(x)] for x in ids], np.uint32)}
    return found | {name: np.full((len(ids), 1), value) for name, value in scalars.items()}


def infer(
    client, model: str, arrays: dict[str, np.ndarray], binary: bool = True, outputs=None
) -> dict[str, np.ndarray]:
    inputs = [tensor(name, array, binary) for name, array in arrays.items()]
    wanted = outputs and [triton.InferRequestedOutput(name, binary_data=binary) for name in outputs]
    answer = client.infer(model, inputs, outputs=wanted, request_id="7")
    assert answer.get_response()["id"] == "7"
    return {output["name"]: answer.as_numpy(output["name"]) for output in answer.get_response()["outputs"]}


def test_it_says_what_it_is_and_what_it_serves(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.get_server_metadata()["name"] == "vlm"
    assert [model["name"] for model in client.get_model_repository_index()] == list(MODELS)
    assert client.is_model_ready("mini-t5") and client.is_model_ready("mini-t5", "1")
    shown = client.get_model_metadata("mini-t5")
    assert {"name": "input_ids", "datatype": "UINT32", "shape": [-1, -1]} in shown["inputs"]
    assert {"name": "output_ids", "datatype": "INT32", "shape": [-1, -1, -1]} in shown["outputs"]  # T5's guide
    llava = client.get_model_metadata("mini-llava")["outputs"]
    assert {"name": "output_ids", "datatype": "UINT32", "shape": [-1, -1, -1]} in llava  # GPT's
    assert "image" in [each["name"] for each in client.get_model_metadata("mini-llava")["inputs"]]
    config = client.get_model_config("mini-t5")
    assert config["max_batch_size"] == 8 and config["input"][0]["data_type"] == "TYPE_UINT32"
    # ids or a text: who sends what a configuration requires, and that alone, would have to send both
    assert all(each["optional"] for model in MODELS for each in client.get_model_config(model)["input"])


@pytest.mark.parametrize("binary", [True, False])
def test_a_ragged_batch_of_ids_gives_each_its_own_answer(client, t5, binary):
    asked = of_ids(t5, TEXTS, max_output_len=np.uint32(60), is_return_log_probs=True, runtime_top_k=np.uint32(1))
    names = ["output_ids", "sequence_length", "cum_log_probs"]
    found = infer(client, "mini-t5", asked, binary, None if binary else names)
    for row, text in enumerate(TEXTS):
        expected = t5.generate(text=text, max_new_tokens=60)
        length = found["sequence_length"][row, 0]
        assert found["output_ids"][row, 0, :length].tolist() == expected.token_ids
        assert found["cum_log_probs"][row, 0] == pytest.approx(expected.cumulative_logprob, abs=1e-3)
        if binary:
            assert found["output_log_probs"][row, 0, :length] == pytest.approx(expected.logprobs, abs=1e-4)
    assert found["output_ids"].dtype == np.int32 and found["output_ids"].shape[:2] == (2, 1)


def test_all_outputs_that_are_listed_come_by_their_names(client, t5):
    """Clients that go by a model's metadata ask so, whatever they send (pytriton's ModelClient)."""
    names = [output["name"] for output in client.get_model_metadata("mini-t5")["outputs"]]
    found = infer(client, "mini-t5", of_ids(t5, TEXTS), outputs=names)
    assert list(found) == names and names[0] == "text_output"
    assert found["text_output"].tolist() == [[t5.generate(text=each).text.encode()] for each in TEXTS]


def test_outputs_come_in_the_order_of_their_list(client):
    """The text first: litellm's provider of Triton takes the first output for it."""
    names = [output["name"] for output in client.get_model_metadata("mini-t5")["outputs"]]
    asked = {"text_input": np.array([[TEXTS[0].encode()]], object), "is_return_log_probs": np.array([[True]])}
    assert list(infer(client, "mini-t5", asked)) == names


def test_log_probabilities_come_when_they_are_asked_for(client, t5):
    names = {"output_ids", "sequence_length"}
    assert infer(client, "mini-t5", of_ids(t5, TEXTS)).keys() == names
    asked = of_ids(t5, TEXTS, is_return_log_probs=True)
    assert infer(client, "mini-t5", asked).keys() == names | {"cum_log_probs", "output_log_probs"}


def test_beams_come_best_first(client, t5):
    settings = {"beam_width": np.uint32(3), "len_penalty": np.float32(0.5), "max_output_len": np.uint32(40)}
    asked = of_ids(t5, TEXTS[:1], **settings)
    found = infer(client, "mini-t5", asked)
    options = {
        "num_beams": 3,
        "num_return_sequences": 3,
        "length_penalty": 0.5,
        "max_new_tokens": 40,
    }
    best = t5.generate(text=TEXTS[0], **options)
    for beam, output in enumerate((best, *best.alternatives)):
        length = found["sequence_length"][0, beam]
        assert found["output_ids"][0, beam, :length].tolist() == output.token_ids


def test_sampling_follows_its_seed_row_by_row(client, t5):
    settings = {"runtime_top_k": np.uint32(50), "temperature": np.float32(2), "random_seed": np.uint64(5)}
    same = infer(client, "mini-t5", of_ids(t5, [TEXTS[1]] * 2, **settings))["output_ids"]
    assert same[0].tolist() == same[1].tolist()
    asked = of_ids(t5, [TEXTS[1]] * 2, **settings)
    asked["random_seed"] = np.array([[5], [6]], np.uint64)
    other = infer(client, "mini-t5", asked)
    length = other["sequence_length"][0, 0]
    expected = t5.generate(text=TEXTS[1], temperature=2.0, top_k=50, seed=5).token_ids
    assert other["output_ids"][0, 0, :length].tolist() == expected
    assert other["output_ids"][0].tolist() != other["output_ids"][1].tolist()


def test_words_end_an_output_or_are_kept_out_of_it(client, t5):
    plain = t5.generate(text=TEXTS[0]).token_ids
    words = lambda *ids: np.array([[[*ids], [len(ids)] + [-1] * (len(ids) - 1)]], np.int32)  # noqa: E731
    asked = of_ids(t5, TEXTS[:1])
    stopped = infer(client, "mini-t5", asked | {"stop_words_list": words(*plain[1:3])})
    assert stopped["sequence_length"].tolist() == [[3]]
    without = infer(client, "mini-t5", asked | {"bad_words_list": words(plain[1])})
    length = without["sequence_length"][0, 0]
    expected = t5.generate(text=TEXTS[0], bad_words_ids=((plain[1],),)).token_ids
    assert without["output_ids"][0, 0, :length].tolist() == expected and plain[1] not in expected
    ended = infer(client, "mini-t5", asked | {"end_id": np.array([[plain[2]]], np.uint32)})
    assert ended["sequence_length"].tolist() == [[3]]


def test_a_decoder_alone_gives_its_prompt_back_under_gpts_names(client, llava):
    ids = [1, *llava.tokenizer.encode("the old")]
    asked = {"input_ids": np.array([ids], np.uint32), "input_lengths": np.array([[len(ids)]], np.uint32)}
    found = infer(client, "mini-llava", asked | {"request_output_len": np.array([[5]], np.uint32)})
    expected = llava.generate(decoder_prompt_token_ids=ids, max_new_tokens=5).token_ids
    assert found["output_ids"][0, 0].tolist() == ids + expected
    assert found["sequence_length"].tolist() == [[len(ids) + len(expected)]]


def test_embeddings_go_before_the_ids(client, llava):
    rows = llava.encode(SCENE).last_hidden_state.float().numpy()[None]
    ids = llava.tokenizer.encode(" " + SIGN)
    asked = {"input_ids": np.array([ids], np.uint32), "request_prompt_embedding": rows}
    found = infer(client, "mini-llava", asked | {"max_output_len": np.array([[6]], np.uint32)})
    prompt = [*range(llava.config.vocab_size, llava.config.vocab_size + rows.shape[1]), *ids]
    expected = llava.generate(prompt_table=rows[0], decoder_prompt_token_ids=prompt, max_new_tokens=6).token_ids
    assert found["output_ids"][0, 0, len(ids) :].tolist() == expected


@pytest.mark.parametrize("binary", [True, False])
def test_texts_and_images_give_texts(client, llava, binary):
    expected = llava.generate(images=[SCENE], prompt=SIGN).text
    image = SCENE.read_bytes() if binary else data_uri(SCENE).encode()
    asked = {"text_input": np.array([[SIGN.encode()]], object), "image": np.array([[image]], object)}
    assert infer(client, "mini-llava", asked, binary)["text_output"].tolist() == [[expected.encode()]]
    pixels = np.asarray(Image.open(SCENE).convert("RGB"))[None]
    asked["image"] = pixels
    assert infer(client, "mini-llava", asked, binary)["text_output"].tolist() == [[expected.encode()]]


def test_pages_and_plain_texts_give_texts(client, t5):
    page = np.array([[(EXAMPLES / "page.png").read_bytes()]], object)
    [[text]] = infer(client, "mini-nougat", {"image": page})["text_output"]
    assert text.decode().strip() == (EXAMPLES / "page.txt").read_text().strip()
    asked = {"text_input": np.array([[text.encode()] for text in TEXTS], object)}
    found = infer(client, "mini-t5", asked, outputs=["text_output"])["text_output"]
    assert [row[0].decode() for row in found] == [t5.generate(text=text).text for text in TEXTS]


def test_words_may_be_texts(client, t5):
    """As TensorRT-LLM's backend has them, a row's padded with empty ones."""
    asked = {
        "text_input": np.array([[text.encode()] for text in TEXTS], object),
        "stop_words": np.array([[b"Schiff", b"klein"], [b"", b""]], object),
        "bad_words": np.array([[b""], [b"Mai"]], object),
        "stream": np.array([[False], [False]]),
        "return_log_probs": np.array([[True], [True]]),
    }
    found = infer(client, "mini-t5", asked)
    expected = [t5.generate(text=TEXTS[0], stop=["Schiff"]), t5.generate(text=TEXTS[1], bad_words=["Mai"])]
    assert [row[0].decode() for row in found["text_output"]] == [each.text for each in expected]
    assert found["cum_log_probs"][1, 0] == pytest.approx(expected[1].cumulative_logprob, abs=1e-3)
    ids = of_ids(t5, TEXTS) | {name: asked[name] for name in ("stop_words", "bad_words")}
    lengths = infer(client, "mini-t5", ids)["sequence_length"]
    assert lengths[:, 0].tolist() == [len(each.token_ids) for each in expected]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({}, "nothing to work on"),
        ({"input_ids": np.zeros((1, 0), np.uint32)}, "holds nothing"),
        ({"input_ids": np.zeros((0, 4), np.uint32)}, "batch"),
        ({"input_ids": np.ones((1, 4), np.float32)}, "another kind"),
        ({"input_ids": np.ones(4, np.uint32)}, "give [batch, n], a row a request"),
        ({"input_ids": np.full((1, 4), 10**6, np.uint32)}, "outside the vocabulary"),
        ({"sequence_length": np.array([[9]], np.uint32)}, "input_ids has 4 tokens"),
        ({"sequence_length": np.array([[1], [2]], np.uint32)}, "they differ"),
        (
            {"max_output_len": np.array([[1], [2]], np.uint32)},
            "they differ or there is none: input_ids 1, max_output_len 2.",
        ),
        ({"beam_widht": np.array([[1]], np.uint32)}, "no input here (is it beam_width?)"),
        ({"pixel_valuez": np.ones((1, 1), np.uint32)}, "bad_words, request_prompt_embedding, request_prompt_lengths"),
        ({"nonsense": np.array([[1]], np.uint32)}, "nonsense is no input"),
        ({"temperature": np.array([[np.nan]], np.float32), "runtime_top_k": np.array([[2]], np.uint32)}, "temperature"),
        ({"stop_words_list": np.array([[[1, 2], [5, -1]]], np.int32)}, "ends"),
        ({"bad_words_list": np.array([[[-3, 2], [1, -1]]], np.int32)}, "outside the vocabulary"),
        ({"bad_words_list": np.array([[[-3, 2], [1, -1]]], np.int32)}, "token id -3 of bad_words_list is outside"),
        ({"beam_width": np.array([[100]], np.uint32)}, "beam_width is 100, this engine"),
        ({"max_output_len": np.array([[10**9]], np.uint32)}, "built for"),
        ({"max_output_len": np.array([[0]], np.uint32)}, "max_output_len is 0"),
        ({"max_tokens": np.array([[0]], np.uint32)}, "max_tokens is 0"),
        ({"max_tokens": np.array([[0.5]], np.float32)}, "input max_tokens has numbers of another kind"),
        ({"input_lengths": np.array([[9]], np.uint32)}, "input_lengths is 9; input_ids has 4"),
        (
            {"max_output_len": np.array([[2]], np.uint32), "min_length": np.array([[3]], np.uint32)},
            "min_length 3 is more than max_output_len 2; lower it.",
        ),
        ({"text_input": np.array([[b"a"]], object)}, "two forms of one input"),
    ],
)
def test_mistakes_get_one_sentence(client, arrays, words):
    given = {"input_ids": np.full((1, 4), 3, np.uint32)} | arrays if arrays else {"temperature": np.ones((1, 1), "f")}
    with pytest.raises(InferenceServerException) as caught:
        infer(client, "mini-t5", given)
    assert caught.value.status() == "400" and words in caught.value.message()
    assert caught.value.message().endswith(".")


@pytest.mark.parametrize("name", ["text_input", "bad_words", "stop_words"])
def test_texts_that_are_no_utf8_are_refused(client, name):
    """As a client sends them that has encoded "Straße" in Latin 1: the model would read another word."""
    arrays = {"text_input": np.array([[b"a"]], object)} | {name: np.array([["Straße".encode("latin-1")]], object)}
    with pytest.raises(InferenceServerException) as caught:
        infer(client, "mini-t5", arrays)
    assert caught.value.status() == "400"
    assert caught.value.message() == rf"{name} is not valid Unicode (at byte 5: b'\xdf'); give it as UTF-8."


@pytest.mark.parametrize(
    ("model", "image", "words"),
    [
        ("mini-llava", b"https://a.example/b.png", "images are not fetched from addresses; send them as data:image/"),
        ("mini-llava", base64.b64encode(SCENE.read_bytes()), "no data URI; put data:image/png;base64, (or its type)"),
        ("mini-nougat", None, "nougat reads images, and there is none; give image."),
    ],
)
def test_images_in_words_and_images_that_are_missing(client, model, image, words):
    given = {"text_input": np.array([[b"Read."]], object)}
    given |= {"image": np.array([[image]], object)} if image else {}
    with pytest.raises(InferenceServerException) as told:
        infer(client, model, given)
    assert told.value.status() == "400" and words in told.value.message()


def test_pixels_of_another_type_are_told_both_forms_of_an_image(client):
    with pytest.raises(
        InferenceServerException, match=r"files as BYTES, or pictures as UINT8 \[batch, height, width, 3"
    ):
        infer(client, "mini-llava", {"image": np.zeros((1, 4, 4, 3), np.float32)})


def test_a_name_that_is_misspelt_comes_before_what_is_missing(client):
    with pytest.raises(InferenceServerException, match=r"^\[400\] text_inputs is no input .* text_input\?\); .*image"):
        infer(client, "mini-llava", {"text_inputs": np.array([[b"a"]], object)})
    with pytest.raises(InferenceServerException) as told:
        infer(client, "mini-t5", {"text_inputs": np.array([[b"a"]], object)})
    assert "image" not in told.value.message() and "pixel_values" not in told.value.message()


def test_floats_come_in_any_type(client, served, llava):
    blocks = served.service("mini-llava").pipeline.llm.scheduler.blocks
    rows = llava.encode(SCENE).last_hidden_state.to(torch.bfloat16).float().numpy()[None]
    asked = {"input_ids": np.array([llava.tokenizer.encode(" " + SIGN)], np.uint32)}
    asked |= {"max_output_len": np.array([[6]], np.uint32), "is_return_log_probs": np.ones((1, 1), bool)}
    found = []
    for kind in (np.float32, ml_dtypes.bfloat16):
        blocks.reset_prefix_cache()  # of a prompt that is known fewer rows are computed, whose sums may differ
        given = asked | {"request_prompt_embedding": rows.astype(kind)}
        found.append(infer(client, "mini-llava", given)["output_log_probs"])
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(client, value):
    rows, pixels = np.zeros((1, 3, 64), np.float16), np.zeros((1, 1, 3, 96, 96), np.float32)
    rows[0, 1, 5] = pixels[0, 0, 2, 3, 4] = value
    for model, name, array in (
        ("mini-t5", "request_prompt_embedding", rows),
        ("mini-llava", "request_prompt_embedding", rows.astype(np.float64)),
        ("mini-llava", "pixel_values", pixels),
    ):
        with pytest.raises(InferenceServerException, match=r"NaN or infini.*; give .*finite") as told:
            infer(client, model, {"input_ids": np.full((1, 4), 3, np.uint32), name: array})
        assert told.value.status() == "400"


def test_models_versions_and_outputs_that_are_not_there(client, t5):
    for ask in (
        lambda: client.get_model_metadata("gpt"),
        lambda: client.get_model_metadata("mini-t5", "2"),
        lambda: infer(client, "mini-t5", of_ids(t5, TEXTS), outputs=["logits"]),
    ):
        with pytest.raises(InferenceServerException) as caught:
            ask()
        assert caught.value.status() in ("400", "404") and caught.value.message().endswith(".")
    assert not client.is_model_ready("gpt")
    # OpenAI's clients like names of the Hub, whose slash ends the name in a path
    with pytest.raises(InferenceServerException, match=r"org/mini-t5/config is not served .* over gRPC or at /v1\.$"):
        client.get_model_config("org/mini-t5")


def test_an_output_that_is_not_there_is_told_before_the_work(client, served, t5):
    count = served.service("mini-t5").statistics.as_json("mini-t5", "1")["execution_count"]
    words = "logits is no output here; there are text_output, output_ids, sequence_length, cum_log_probs, output_log_pr"
    with pytest.raises(InferenceServerException, match=f"^.400. {words}"):
        infer(client, "mini-t5", of_ids(t5, TEXTS), outputs=["output_ids", "logits"])
    assert served.service("mini-t5").statistics.as_json("mini-t5", "1")["execution_count"] == count


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[]", b'{"inputs": 3}', b'{"inputs": [{}]}', b'{"inputs": [{"name": "a", "datatype": "BF16"}]}',
        b'{"inputs": [{"name": "a", "datatype": "INT8", "shape": [2], "data": [1]}]}',
        b'{"inputs": [{"name": "a", "datatype": "INT8", "shape": [1], "data": [300]}]}',
        b'{"inputs": [{"name": "a", "datatype": "BYTES", "shape": [1], "data": [1]}]}',
        b'{"inputs": [{"name": "a", "datatype": "INT8", "shape": [1], "parameters": {"binary_data_size": 9}}]}',
        b'{"inputs": []}xyz',
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(served, body):
    import http.client

    connection = http.client.HTTPConnection(served.address)
    connection.request("POST", "/v2/models/mini-t5/infer", body)
    answer = connection.getresponse()
    assert answer.status == 400 and json.loads(answer.read())["error"].endswith(".")


# --- the rest of what tritonclient.http calls ---
def text(*texts: str) -> triton.InferInput:
    return tensor("text_input", np.array([[each.encode()] for each in texts], object))


def test_statistics_count_what_was_asked(client):
    [before] = client.get_inference_statistics("mini-t5", "1")["model_stats"]
    client.infer("mini-t5", [text(*TEXTS)])
    with pytest.raises(InferenceServerException):
        client.infer("mini-t5", [text(TEXTS[0])], timeout=1)
    [after] = client.get_inference_statistics("mini-t5")["model_stats"]
    assert after["inference_count"] == before["inference_count"] + 2
    for part, more in {"success": 1, "fail": 1, "queue": 1, "compute_input": 1, "compute_infer": 1}.items():
        assert after["inference_stats"][part]["count"] == before["inference_stats"][part]["count"] + more
    assert after["execution_count"] > before["execution_count"] and after["last_inference"] > 1e12
    assert sum(batch["compute_infer"]["count"] for batch in after["batch_stats"]) == after["execution_count"]
    assert len(client.get_inference_statistics()["model_stats"]) == len(MODELS)
    with pytest.raises(InferenceServerException, match="not served here"):
        client.get_inference_statistics("gpt")


def test_what_is_not_done_says_so(client):
    assert client.get_system_shared_memory_status() == client.get_cuda_shared_memory_status() == []
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory("a")
    for ask in (
        lambda: client.register_system_shared_memory("a", "/a", 8),
        lambda: client.register_cuda_shared_memory("a", b"", 0, 8),
        lambda: client.get_trace_settings(),
        lambda: client.update_trace_settings("mini-t5", {"trace_level": ["TIMESTAMPS"]}),
        lambda: client.get_log_settings(),
        lambda: client.update_log_settings({"log_verbose_level": 1}),
    ):
        with pytest.raises(InferenceServerException) as caught:
            ask()
        assert caught.value.status() == "501" and caught.value.message().endswith(".")


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({"sequence_id": 5, "sequence_start": True}, "400", "sequence_id"),
        ({"sequence_id": "a", "sequence_end": True}, "400", "sequence_id"),
        ({"priority": 1}, "400", "priority"),
        ({"timeout": 1}, "503", "timeout of 1 µs"),
        ({"timeout": -1}, "400", "timeout"),
        ({"parameters": {"nonsense": 1}}, "400", "nonsense is unknown"),
        ({"parameters": {"temperature": True}}, "400", "temperature"),
        ({"parameters": {"random_seed": 2**64}}, "400", "random_seed"),
        ({"parameters": {"temperature": 10**400}}, "400", "temperature"),
        ({"outputs": [triton.InferRequestedOutput("text_output", class_count=2)]}, "400", "classes"),
    ],
)
def test_parameters_are_honoured_or_refused(client, options, status, words):
    with pytest.raises(InferenceServerException) as caught:
        client.infer("mini-t5", [text(TEXTS[0])], **options)
    assert caught.value.status() == status and words in caught.value.message()
    assert caught.value.message().endswith(".")


def test_tensors_in_shared_memory_are_refused(client):
    shared = triton.InferInput("text_input", [1, 1], "BYTES")
    shared.set_shared_memory("a", 8)
    wanted = triton.InferRequestedOutput("text_output")
    wanted.set_shared_memory("a", 8)
    for inputs, outputs in (([shared], None), ([text(TEXTS[0])], [wanted])):
        with pytest.raises(InferenceServerException, match="shared memory, which is not served"):
            client.infer("mini-t5", inputs, outputs=outputs)


def test_numbers_are_finite_even_where_they_change_nothing(client):
    for value in (np.nan, np.inf):
        with pytest.raises(InferenceServerException, match=r"temperature is .* finite"):  # of a greedy request
            client.infer("mini-t5", [text(TEXTS[0]), tensor("temperature", np.array([[value]], np.float32))])


def test_options_go_as_parameters_too(client):
    found = client.infer("mini-t5", [text(*TEXTS)], timeout=10**9, parameters={"max_output_len": 3})
    assert found.as_numpy("sequence_length").tolist() == [[3], [3]]
    twice = [text(TEXTS[0]), tensor("max_output_len", np.array([[3]], np.uint32))]
    with pytest.raises(InferenceServerException, match="give it once"):
        client.infer("mini-t5", twice, parameters={"max_output_len": 3})


def test_responses_are_compressed_where_asked(client, served, t5):
    import http.client

    arrays = of_ids(t5, TEXTS * 8, is_return_log_probs=True)
    inputs = [tensor(name, array) for name, array in arrays.items()]
    plain = client.infer("mini-t5", inputs)
    for algorithm in ("gzip", "deflate"):
        found = client.infer("mini-t5", inputs, response_compression_algorithm=algorithm)
        # both are decoded: their rows may come into the engine in other batches, which round differently
        np.testing.assert_allclose(found.as_numpy("output_log_probs"), plain.as_numpy("output_log_probs"), atol=1e-4)
    connection = http.client.HTTPConnection(served.address)
    connection.request("GET", "/v2/models/mini-t5", headers={"Accept-Encoding": "gzip"})
    assert connection.getresponse().headers["content-encoding"] is None, "the asyncio client would not decode it"


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_requests_may_be_compressed(client, served, algorithm):
    given = [text(TEXTS[0])]
    coded = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
    expected = client.infer("mini-t5", given).as_numpy("text_output").tolist()
    assert client.infer("mini-t5", given, **coded).as_numpy("text_output").tolist() == expected

    async def ask():
        async with triton_aio.InferenceServerClient(served.address) as other:
            return (await other.infer("mini-t5", given, **coded)).as_numpy("text_output").tolist()

    assert asyncio.run(ask()) == expected


def test_asynchronous_calls_and_the_asyncio_client(client, served):
    pending = [client.async_infer("mini-t5", [text(each)]) for each in TEXTS]
    found = [each.get_result().as_numpy("text_output")[0, 0] for each in pending]

    async def ask():
        async with triton_aio.InferenceServerClient(served.address) as other:
            assert await other.is_server_live() and await other.is_model_ready("mini-t5")
            assert (await other.get_inference_statistics("mini-t5"))["model_stats"]
            answers = await asyncio.gather(*(other.infer("mini-t5", [text(each)]) for each in TEXTS))
            with pytest.raises(InferenceServerException, match="not served here"):
                await other.infer("gpt", [text(TEXTS[0])])
            return [answer.as_numpy("text_output")[0, 0] for answer in answers]

    assert asyncio.run(ask()) == found == [alone("mini-t5").generate(text=each).text.encode() for each in TEXTS]
