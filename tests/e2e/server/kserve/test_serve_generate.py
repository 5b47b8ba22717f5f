"""Triton's generate extension: flat JSON in and out, and as server-sent events."""

from __future__ import annotations

import http.client
import itertools
import json
from types import SimpleNamespace

import pytest

from tests.kits.servers.server_kit import EXAMPLES, aborts, alone, data_uri, is_empty, load, serving, until

TEXT, GERMAN = "translate English to German: The old ship is small.", "Das alte Schiff ist klein."
SCENE, SIGN = EXAMPLES / "scene1.png", "Read the sign."
MODELS = ("mini-llava", "mini-t5")


@pytest.fixture(scope="module")
def served():
    with serving(load(*MODELS)) as found:
        yield found
        until(lambda: all(is_empty(found.service(name).pipeline) for name in MODELS))


def asked(served, path: str, body: dict | bytes) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(served.address)
    sent = body if isinstance(body, bytes) else json.dumps(body)
    connection.request("POST", f"/v2/models/{path}", sent, {"Content-Type": "application/json"})
    return connection.getresponse()


def generate(served, model: str, **body) -> dict:
    answer = asked(served, f"{model}/generate", body)
    found = json.load(answer)
    assert answer.status == 200, found
    return found


def events(served, model: str, **body) -> list[dict]:
    answer = asked(served, f"{model}/generate_stream", body)
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(event.removeprefix("data: ")) for event in answer.read().decode().split("\n\n") if event]


def test_a_text_gives_a_text(served):
    found = generate(served, "mini-t5", text_input=TEXT, id="42")
    expected = alone("mini-t5").generate(text=TEXT)
    assert found == {
        "id": "42", "model_name": "mini-t5", "model_version": "1", "text_output": GERMAN,
        "output_ids": expected.token_ids, "sequence_length": len(expected.token_ids),
    }  # fmt: skip
    versioned = asked(served, "mini-t5/versions/1/generate", {"text_input": TEXT})
    assert json.load(versioned)["text_output"] == GERMAN


def test_an_image_goes_beside_the_text(served):
    expected = alone("mini-llava").generate(images=[SCENE], prompt=SIGN).text
    assert generate(served, "mini-llava", text_input=SIGN, image=data_uri(SCENE))["text_output"] == expected


def test_several_texts_and_several_beams_are_lists(served):
    assert generate(served, "mini-t5", text_input=[TEXT, TEXT])["text_output"] == [GERMAN, GERMAN]
    assert len(generate(served, "mini-t5", text_input=TEXT, beam_width=3)["text_output"]) == 3


def test_options_stand_beside_the_text_or_among_the_parameters(served):
    beside = [{name: 3} for name in ("max_output_len", "max_tokens", "request_output_len")]
    for options in (*beside, {"parameters": {"max_tokens": 3, "stream": False}}):
        assert generate(served, "mini-t5", text_input=TEXT, **options)["sequence_length"] == 3
    ids = alone("mini-t5").request(TEXT).encoder_input_ids
    assert generate(served, "mini-t5", input_ids=list(ids), max_output_len=3)["sequence_length"] == 3
    assert "alte" not in generate(served, "mini-t5", text_input=TEXT, stop=[" alte"])["text_output"]
    logprobs = generate(served, "mini-t5", text_input=TEXT, is_return_log_probs=True)
    assert len(logprobs["output_log_probs"]) == logprobs["sequence_length"]


def test_settings_have_hugging_faces_names_too(served):
    found = generate(served, "mini-t5", text_input=TEXT, num_beams=3, parameters={"max_new_tokens": 4})
    assert found == generate(served, "mini-t5", text_input=TEXT, beam_width=3, max_output_len=4)
    drawn = {"temperature": 3, "top_k": 50, "seed": 4}
    expected = alone("mini-t5").generate(text=TEXT, temperature=3.0, top_k=50, seed=4)
    assert generate(served, "mini-t5", text_input=TEXT, **drawn)["text_output"] == expected.text


# TensorRT-LLM's backend: README.md, and the fields that its clients send without asking for anything
NOTHING = {
    "bad_words": "", "stop_words": [""], "stream": False, "pad_id": 2, "return_context_logits": False,
    "return_generation_logits": False, "exclude_input_in_output": True, "num_return_sequences": 1,
    "return_perf_metrics": False, "num_draft_tokens": 0, "use_draft_logits": False, "embedding_bias_words": [],
    "embedding_bias_weights": [], "early_stopping": False, "Streaming": False,
}  # fmt: skip


def test_what_clients_of_tensorrt_llm_send_is_understood(served):
    expected = generate(served, "mini-t5", text_input=TEXT)
    assert generate(served, "mini-t5", text_input=TEXT, **NOTHING) == expected
    assert generate(served, "mini-t5", text_input=TEXT, parameters=NOTHING) == expected
    assert generate(served, "mini-t5", text_input=TEXT, stop_words=["small", "Schiff"])["text_output"] == "Das alte "
    assert (
        generate(served, "mini-t5", text_input=TEXT, stop_words="klein", stop=["Schiff"])["text_output"] == "Das alte "
    )
    assert "Schiff" not in generate(served, "mini-t5", text_input=TEXT, bad_words=["Schiff"])["text_output"]
    logprobs = generate(served, "mini-t5", text_input=TEXT, return_log_probs=True)
    assert len(logprobs["output_log_probs"]) == logprobs["sequence_length"]
    penalty = alone("mini-t5").generate(text=TEXT, frequency_penalty=20.0, min_new_tokens=30, max_new_tokens=40)
    options = {"frequency_penalty": 20, "min_tokens": 30, "max_tokens": 40}
    assert generate(served, "mini-t5", text_input=TEXT, **options)["text_output"] == penalty.text


def test_settings_have_the_names_of_tensorrt_llms_backend_too(served):
    drawn = {"temperature": 5.0, "top_p": 0.9, "seed": 4, "max_new_tokens": 20}
    first = alone("mini-t5").generate(text=TEXT, **drawn).token_ids[0]
    texts = set()
    for nucleus in (
        {"top_p_decay": 0.5},
        {"top_p_decay": 0.5, "top_p_min": 0.6},
        {"top_p_decay": 0.5, "top_p_reset_ids": first},
    ):
        own = {name.replace("_ids", "_id"): value for name, value in nucleus.items()}
        named = {f"runtime_{name}": value for name, value in nucleus.items()}
        found = generate(served, "mini-t5", text_input=TEXT, **drawn, **named)["text_output"]
        assert found == alone("mini-t5").generate(text=TEXT, **drawn, **own).text
        texts.add(found)
    assert len(texts) == 3


def test_beams_end_early_where_a_request_says_so(served):
    options = {"num_beams": 3, "length_penalty": 2.0, "max_new_tokens": 40}
    both = []
    for early in (True, False):
        best = alone("mini-t5").generate(text="a b c", **options, early_stopping=early, num_return_sequences=3)
        found = generate(served, "mini-t5", text_input="a b c", **options, early_stopping=early)["text_output"]
        assert found == [best.text, *(other.text for other in best.alternatives)]
        both.append(found)
    assert both[0] != both[1]


def test_a_models_own_stop_strings_hold_where_a_request_has_none(served, monkeypatch):
    generation = served.service("mini-t5").pipeline.engine.generation
    monkeypatch.setitem(generation, "stop_strings", [" ist"])
    assert generate(served, "mini-t5", text_input=TEXT)["text_output"] == "Das alte Schiff"
    assert generate(served, "mini-t5", text_input=TEXT, stop_words=" Schiff")["text_output"] == "Das alte"


def test_null_is_as_good_as_left_out(served):
    nothing = dict.fromkeys(("max_tokens", "stop_words", "bad_words", "image", "temperature", "id", "stream"))
    found = generate(served, "mini-t5", text_input=TEXT, **nothing, parameters={"seed": None})
    assert found == generate(served, "mini-t5", text_input=TEXT)


def test_another_method_is_told_the_right_one(served):
    connection = http.client.HTTPConnection(served.address)
    connection.request("GET", "/v2/models/mini-t5/generate")
    answer = connection.getresponse()
    assert answer.status == 405
    assert json.load(answer) == {"error": "/v2/models/mini-t5/generate is asked by another method; use POST."}


def test_a_temperature_alone_draws(served):
    seeds = range(6)
    texts = {generate(served, "mini-t5", text_input=TEXT, temperature=3, random_seed=s)["text_output"] for s in seeds}
    expected = {alone("mini-t5").generate(text=TEXT, temperature=3.0, seed=s, top_p=1.0).text for s in seeds}
    assert texts == expected and len(texts) > 1
    assert generate(served, "mini-t5", text_input=TEXT, temperature=0)["text_output"] == GERMAN


def test_a_stream_holds_all_so_far(served):
    found = events(served, "mini-t5", text_input=TEXT, id="7")
    texts = [event["text_output"] for event in found]
    assert len(texts) > 1 and texts[-1] == GERMAN and {event["id"] for event in found} == {"7"}
    assert all(after.startswith(before) for before, after in itertools.pairwise(texts))
    assert [event["text_output"] for event in events(served, "mini-t5", text_input=TEXT, stream=False)] == [GERMAN]


def test_a_stream_of_a_batch_has_an_event_a_burst(served):
    """And not one for each of its rows, each of which would hold all of them; rows may end one by one."""
    found = events(served, "mini-t5", text_input=[TEXT] * 16)
    assert found[-1]["text_output"] == [GERMAN] * 16
    assert len(found) < 3 * 16  # of four bursts, and as many ends


def test_a_stream_of_a_model_that_is_not_decoupled_holds_one_event(served, monkeypatch):
    monkeypatch.setattr(served.service("mini-t5"), "decoupled", False)
    assert [event["text_output"] for event in events(served, "mini-t5", text_input=TEXT)] == [GERMAN]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text_input": TEXT}, '{"text_input": …} goes to /v2/models/NAME/generate.'),
        ({"inputs": [{"name": "input_ids", "datatype": "UINT32", "shape": [1, 3], "data": [4, 5]}]}, "give 3."),
        ({"inputs": [{"name": "input_ids", "datatype": "UINT32", "shape": [-1, 1], "data": [4]}]}, "sizes from 0 on"),
        ({"inputs": [{"name": "input_ids", "datatype": "UINT32", "shape": [1, 1]}]}, "give a list of values"),
    ],
)
def test_mistakes_of_infer_are_told_with_what_to_do(served, body, words):
    answer = asked(served, "mini-t5/infer", body)
    assert answer.status == 400 and words in json.load(answer)["error"]


@pytest.mark.parametrize("route", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"{", 400, "no JSON"), (b"[]", 400, "must be an object"), ({}, 400, "nothing to work on"),
        ({"text_input": TEXT, "parameters": 3}, 400, "must be an object"),
        ({"text_input": 3}, 400, "not BYTES; give texts"), ({"text_input": {}}, 400, "nested"),
        ({"text_input": []}, 400, "batch"),
        ({"text_input": TEXT, "nonsense": 1}, 400, "nonsense is unknown"),
        ({"text_input": TEXT, "max_token": 1}, 400, "max_token is unknown here (is it max_tokens or max_new_tokens?)"),
        ({"text_inputs": TEXT}, 400, "text_inputs is unknown here (is it text_input?)"),
        ({"text_input": TEXT, "image": "data:,"}, 400, "image is no input here; inputs are input_ids, "),
        ({"text_input": TEXT, "stream": 1}, 400, "parameter stream must be"),
        ({"text_input": TEXT, "streaming": 1}, 400, "parameter streaming must be true or false"),
        ({"text_input": TEXT, "details": True}, 400, "is_return_log_probs"),
        ({"text_input": TEXT, "stop": [1]}, 400, "stop must be"),
        ({"text_input": TEXT, "stop": [*map(str, range(17))]}, 400, "stop has 17 strings; give at most 16"),
        ({"text_input": TEXT, "stop_words": [*map(str, range(17))]}, 400, "last size may be 16"),
        ({"text_input": TEXT, "bad_words": [" "]}, 400, "a bad word is blank"),
        ({"text_input": TEXT, "pad_id": 2, "return_context_logits": True}, 400, "log-probabilities"),
        ({"text_input": TEXT, "num_return_sequences": 2}, 400, "beam_width says how many"),
        ({"text_input": TEXT, "num_draft_tokens": 3}, 400, "prompt_lookup_num_tokens says how many"),
        ({"text_input": TEXT, "embedding_bias_words": ["a"]}, 400, "OpenAI's has logit_bias"),
        ({"text_input": TEXT, "lora_weights": [0.5]}, 400, "by --lora; lora_task_uids says which"),
        ({"text_input": TEXT, "prompt_vocab_size": 3}, 400, "rows before the ids are request_prompt_embedding"),
        ({"text_input": TEXT, "early_stopping": "never"}, 400, "must be BOOL"),
        ({"text_input": TEXT, "exclude_input_in_output": "no"}, 400, "leave it out, or true"),
        ({"text_input": TEXT, "seed": 1, "random_seed": 1}, 400, "say the same"),
        ({"text_input": TEXT, "max_tokens": 3, "parameters": {"max_output_len": 3}}, 400, "say the same"),
        ({"text_input": TEXT, "ia3_tasks": 0, "parameters": {"ia3_tasks": 0}}, 400, "ia3_tasks is given twice"),
        ({"text_input": TEXT, "ia3_tasks": 0}, 400, "there is no adapter 0"),
        ({"text_input": TEXT, "max_tokens": "3"}, 400, "must be UINT32"),
        ({"text_input": TEXT, "max_tokens": -1}, 400, "must be UINT32"),
        ({"text_input": TEXT, "max_tokens": "3"}, 400, "the parameter max_tokens is '3'"),
        ({"text_input": TEXT, "request_output_len": 0}, 400, "request_output_len is 0; it must be at least 1."),
        ({"text_input": TEXT, "max_output_len": 0}, 400, "max_output_len is 0; it must be at least 1."),
        ({"text_input": TEXT, "num_beams": 65, "max_tokens": 1}, 400, "num_beams is 65"),
        ({"text_input": TEXT, "min_tokens": 4, "max_tokens": 3}, 400, "min_tokens 4 is more than max_tokens 3"),
        ({"text_input": TEXT, "max_tokens": 10**9}, 400, "built for"),
        ({"text_input": TEXT, "sequence_id": 4}, 400, "sequence_id"),
        ({"text_input": TEXT, "priority": 1}, 400, "priority"),
        ({"text_input": TEXT, "timeout": 1}, 503, "timeout of 1 µs"),
        ({"text_input": TEXT, "id": 4}, 400, "id is 4"),
        ({"text_input": TEXT, "id": "half a pair: \ud800"}, 400, "not valid Unicode"),
        ({"text_input": "a\ud800b"}, 400, "text_input is not valid Unicode (at byte 2: b'\\xed'); give it as UTF-8."),
        ({"text_input": TEXT, "bad_words": "\ud800"}, 400, "bad_words is not valid Unicode"),
        ({"text_input": TEXT, "stop_words": ["a", "\udfff"]}, 400, "stop_words is not valid Unicode"),
        ({"text_input": TEXT, "task": "\udfff"}, 400, "task is not valid Unicode"),
        ({"text_input": TEXT, "id": 1025 * "a"}, 400, "at most 1,024"),
        ({"text_input": TEXT, "stop_words_list": [1, 2, 3]}, 400, "3 values"),
        ({"input_ids": [10**6]}, 400, "outside the vocabulary"),
    ],
)  # fmt: skip
def test_mistakes_get_one_sentence(served, route, body, status, words):
    answer = asked(served, f"mini-t5/{route}", body)
    error = json.load(answer)["error"]
    assert answer.status == status and words in error and error.endswith("."), error


def test_models_that_are_not_there(served):
    for path in ("gpt/generate", "mini-t5/versions/7/generate_stream"):
        answer = asked(served, path, {"text_input": TEXT})
        assert answer.status == 404 and json.load(answer)["error"].endswith(".")
    for name in ("stream", "streaming"):
        answer = asked(served, "mini-t5/generate", {"text_input": TEXT, name: True})
        said = f"the parameter {name} is true; send the request to generate_stream."
        assert answer.status == 400 and json.load(answer)["error"] == said


def test_a_stream_that_is_left_ends_its_work(served, monkeypatch):
    service = served.service("mini-t5")
    aborted = aborts(service.pipeline.llm, monkeypatch)
    connection = http.client.HTTPConnection(served.address)
    connection.request("POST", "/v2/models/mini-t5/generate_stream", json.dumps({"text_input": TEXT}),
                       {"Content-Type": "application/json"})  # fmt: skip
    until(lambda: service.room.held)
    connection.close()
    until(lambda: aborted and not service.room.held)


@pytest.mark.parametrize("are_there", [False, True])
def test_a_timeout_ends_a_stream_with_an_event(served, monkeypatch, are_there):
    """Also where the bursts that follow need not be waited for, as a slow client leaves them lying."""
    service = served.service("mini-t5")
    stream_bursts = service.stream_bursts

    async def collected(items):
        for burst in [each async for each in stream_bursts(items)]:
            yield burst

    if are_there:
        monkeypatch.setattr(service, "stream_bursts", collected)
    readings = itertools.chain([0.0] * 3, itertools.repeat(1e9))  # its beginning, its room, the first burst, the others
    monkeypatch.setattr("vlm_app.server.kserve.inference.time", SimpleNamespace(monotonic=lambda: next(readings)))
    first, last = events(served, "mini-t5", text_input=TEXT, timeout=10**9)
    assert first["text_output"] and "timeout of 1000000000 µs" in last["error"]
