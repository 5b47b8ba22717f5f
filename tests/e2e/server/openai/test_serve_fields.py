"""Every field that OpenAI's and vLLM's clients send: honoured, without a meaning, or refused by name."""

from __future__ import annotations

import base64
import json
import urllib.parse

import httpx
import numpy as np
import openai
import pytest

from tests.kits.servers.server_kit import EXAMPLES, asked, data_uri
from vlm_app.server.core.data_uris import decode_data_uri
from vlm_app.server.openai.fields import IGNORED, REFUSED

SCENE, SIGN = EXAMPLES / "scene1.png", "Read the sign."
TEXT = "translate English to German: The old ship is small."
GERMAN = "Das alte Schiff ist klein."
MODELS = ("mini-llava", "mini-t5", "mini-nougat")


def said(client, messages=TEXT, model="mini-t5", **more):
    """The first choice; `more` that the client does not know goes into its extra_body."""
    messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
    return client.chat.completions.create(model=model, messages=messages, **more).choices[0].message.content


def refusal(client, **more) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        said(client, **more)
    message = caught.value.body["message"]
    assert message.endswith(".") and "\n" not in message
    return caught.value


# --- fields that ask for nothing ---
NEUTRAL = {
    "tool_choice": "auto", "tools": [], "functions": [], "function_call": "none", "parallel_tool_calls": True,
    "response_format": {"type": "text"}, "modalities": ["text"], "logit_bias": {}, "suffix": "", "stop": [],
    "priority": 0, "detokenize": True, "spaces_between_special_tokens": True, "skip_special_tokens": True,
    "chat_template_kwargs": {}, "mm_processor_kwargs": {}, "documents": [], "echo": False, "add_special_tokens": False,
    "add_generation_prompt": True, "continue_final_message": False, "use_beam_search": False, "best_of": 1,
    "min_tokens": 0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "ignore_eos": False,
    "stop_token_ids": [], "allowed_token_ids": [], "bad_words": [], "include_stop_str_in_output": False,
    "early_stopping": False, "return_tokens_as_token_ids": False, "return_token_ids": False, "user": "me", "n": 1,
    "metadata": {"a": "b"}, "seed": -1, "top_p": 1, "temperature": 0, "stream_options": {"include_usage": None},
}  # fmt: skip


def test_what_asks_for_nothing_is_accepted(client):
    assert said(client) == GERMAN
    assert said(client, extra_body=NEUTRAL) == GERMAN
    # OpenAI's caches of prompts, as older and newer clients set them
    cache = {"prompt_cache_key": "a", "prompt_cache_retention": "24h",
             "prompt_cache_options": {"mode": "explicit", "ttl": "30m"}}  # fmt: skip
    assert said(client, extra_body=cache) == GERMAN


def test_settings_among_the_arguments_of_logits_processors(client):
    """As mineru-vl-utils sends one; other arguments are refused."""
    xargs, time = {"no_repeat_ngram_size": 1, "debug": False}, "translate English to German: 11:11"
    told = said(client, time, extra_body={"vllm_xargs": xargs})
    assert told == said(client, time, extra_body={"no_repeat_ngram_size": 1}) != "11:11"
    # the field comes first
    assert said(client, time, extra_body={"vllm_xargs": xargs, "no_repeat_ngram_size": 0}) == "11:11"
    assert "vllm_xargs" in str(refusal(client, extra_body={"vllm_xargs": xargs | {"window": 3}}))


def test_null_is_as_if_a_field_were_left_out(served):
    names = {*NEUTRAL, *IGNORED, *REFUSED, "max_tokens", "logprobs", "top_logprobs", "stream", "unheard_of"}
    body = {"model": "mini-t5", "messages": [{"role": "user", "content": TEXT}], **dict.fromkeys(names)}
    answer = httpx.post(f"{served.url}/v1/chat/completions", json=body)
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == GERMAN
    body = {"model": "mini-t5", "prompt": TEXT, "echo": None, "logprobs": None, "suffix": None, "best_of": None}
    assert httpx.post(f"{served.url}/v1/completions", json=body).json()["choices"][0]["text"] == GERMAN
    body = {"model": "mini-t5", "input": TEXT, "dimensions": None, "encoding_format": None, "user": None}
    assert httpx.post(f"{served.url}/v1/embeddings", json=body).status_code == 200


@pytest.mark.parametrize("name", [*REFUSED, "unheard_of"])
def test_what_asks_for_something_that_is_not_done_is_refused_by_name(client, name):
    for value in ({"a": 1}, "some", [1]):
        error = refusal(client, extra_body={name: value})
        assert name in error.body["message"] and error.param == name and "Extra inputs" not in error.body["message"]


@pytest.mark.parametrize(("field", "options", "words"), [
    ("n", {"n": 3, "extra_body": {"num_beams": 2}}, "n is 3: give at least as many num_beams (now 2)"),
    ("num_beams", {"temperature": 1, "extra_body": {"num_beams": 2}}, "num_beams is 2 and temperature 1, which"),
    ("num_beams", {"extra_body": {"num_beams": 60}}, "num_beams is 60, this engine decodes"),
    ("min_tokens", {"max_tokens": 2, "extra_body": {"min_tokens": 3}}, "min_tokens 3 is more than max_tokens 2; lower"),
    ("logit_bias", {"logit_bias": {"5": 101}}, "logit_bias.5: Input should be"),
    ("logit_bias", {"logit_bias": {"999999": 1}}, "token id 999999 of logit_bias is outside the vocabulary"),
    ("stop", {"stop": [f"x{i}" for i in range(17)]}, "stop has 17 strings; give at most 16"),
    ("stop", {"stop": [1]}, "stop: Input should be a valid string"),
    ("max_tokens", {"max_tokens": True}, "max_tokens: Input should be a number, not true or false"),
    ("logprobs", {"logprobs": 2, "extra_body": {"num_beams": 2}}, "logprobs are for single sequences: set num_beams"),
])  # fmt: skip
def test_a_setting_is_called_as_the_client_does(client, field, options, words):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="mini-t5", prompt=TEXT, **options)
    assert caught.value.body["message"].startswith(words) and caught.value.param == field


@pytest.mark.parametrize(("options", "words"), [
    ({"tool_choice": "required"}, "tool_choice 'required' is not supported"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5: Input should be less than or equal to 100"),
    ({"logit_bias": {"ship": 1}}, "logit_bias"), ({"logit_bias": {"1000000": 1}}, "outside the vocabulary"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "at most 1024"),
    ({"extra_body": {"allowed_token_ids": [10**6]}}, "outside the vocabulary"),
    ({"extra_body": {"add_generation_prompt": False}}, "needs continue_final_message=true"),
    ({"extra_body": {"continue_final_message": True, "add_generation_prompt": True}}, "add_generation_prompt=false"),
    ({"extra_body": {"priority": 3}}, "priority 3 is not supported"),
    ({"extra_body": {"best_of": 2}, "n": 3}, "best_of is 2 and n is 3"),
    ({"extra_body": {"best_of": 2}, "stream": True}, "cannot be streamed"),
    ({"extra_body": {"use_beam_search": True, "best_of": 2}, "temperature": 1}, "exclude each other"),
    ({"extra_body": {"truncate_prompt_tokens": 3}, "model": "mini-llava"}, "conversations are not cut"),
])  # fmt: skip
def test_values_that_are_not_allowed(client, options, words):
    assert words in refusal(client, **options).body["message"]


MANY = [
    *[("prompt", value, "64", found) for value, found in [
        (["a"] * 65, "has 65 entries"), ([[1]] * 65, "has 65 entries"), ([], "is empty"),
        ([-1], "holds something else"), ([1, "a"], "holds something else"), ([[]], "holds something else"),
        ([True], "holds something else"), ({"a": 1}, "is neither a text nor a list"),
    ]],
    ("input", ["a"] * 2049, "2,048", "has 2,049 entries"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "most", "found"), MANY)
def test_how_many_inputs_there_may_be_is_said(served, field, value, most, found):
    route = {"prompt": "completions", "input": "embeddings"}[field]
    answer = httpx.post(f"{served.url}/v1/{route}", json={"model": "mini-t5", field: value})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] == field
    assert error["message"].startswith(f"{field} {found}") and "; give a text, 1 to 1,0" in error["message"]
    assert error["message"].endswith(f"none of them negative, or a list of 1 to {most} such texts or lists of ids.")


LONG, NO_IMAGE = "a word " * 10_000, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


@pytest.mark.parametrize(("route", "fields", "param"), [
    ("completions", {"model": "mini-t5", "prompt": LONG}, "prompt"),
    ("completions", {"model": "mini-t5", "prompt": "a", "max_tokens": 99_999}, "max_tokens"),
    ("embeddings", {"model": "mini-t5", "input": LONG}, "input"),
    ("chat/completions", {"model": "mini-llava", "messages": [{"role": "user", "content": LONG}]}, "messages"),
    ("chat/completions", {"model": "mini-t5", "messages": [{"role": "system", "content": "a"}]}, "messages"),
    ("embeddings", {"model": "mini-llava", "input": "data:image/png;base64,#"}, "input"),
    ("completions", {"model": "mini-nougat", "prompt": "a"}, "prompt"),
    ("embeddings", {"model": "mini-nougat", "input": "a"}, "input"),
    ("chat/completions", {"model": "mini-llava", "messages": [{"role": "user", "content": [NO_IMAGE]}]}, "messages"),
    ("chat/completions", {"model": "mini-t5", "messages": asked("")}, "messages"),
    ("chat/completions", {"model": "mini-t5", "messages": asked("a", SCENE)}, "messages"),
    ("chat/completions", {"model": "mini-nougat", "messages": asked("", SCENE, SCENE)}, "messages"),
    ("chat/completions", {"model": "mini-llava", "messages": asked("<image> a")}, "messages"),
    ("completions", {"model": "mini-t5", "prompt": [[5], [99_999]]}, "prompt"),
    ("embeddings", {"model": "mini-t5", "input": [[5], [99_999]]}, "input"),
    ("embeddings", {"model": "mini-t5", "input": data_uri(SCENE)}, "input"),
])  # fmt: skip
def test_the_field_of_an_input_that_is_not_taken_is_named(served, route, fields, param):
    error = httpx.post(f"{served.url}/v1/{route}", json=fields).json()["error"]
    assert error["param"] == param


@pytest.mark.parametrize(("route", "fields", "param"), [
    ("chat/completions", {"messages": asked("a"), "task": "mnli"}, "task"),
    ("embeddings", {"input": "a", "task": 1}, "task"),
    ("completions", {"prompt": "a", "question": "b"}, "question"),
    ("embeddings", {"model": "mini-llava", "input": data_uri(SCENE), "task": "mnli"}, "task"),
    ("chat/completions", {"model": "mini-llava", "messages": asked("a"), "truncate_prompt_tokens": 3},
     "truncate_prompt_tokens"),
    ("chat/completions", {"model": "mini-llava", "messages": asked("a"), "continue_final_message": True,
                          "add_generation_prompt": False}, "continue_final_message"),
    ("completions", {"prompt": ["a"] * 64, "n": 64}, "n"),
    ("completions", {"prompt": "a", "n": 64, "logprobs": 20, "max_tokens": 500}, "max_tokens"),
    ("embeddings", {"input": "a", "dimensions": 9999}, "dimensions"),
    ("completions", {"model": "nobody", "prompt": "a"}, "model"),
])  # fmt: skip
def test_what_a_pipeline_refuses_is_told_with_its_field(served, route, fields, param):
    error = httpx.post(f"{served.url}/v1/{route}", json={"model": "mini-t5"} | fields).json()["error"]
    assert error["param"] == param


@pytest.mark.parametrize(("model", "step"), [
    ("mini-t5", "of the user, and the system's words at the beginning of its text."), ("mini-nougat", "of the user."),
])  # fmt: skip
def test_a_model_that_does_not_converse_says_where_words_of_the_system_go(client, model, step):
    error = refusal(client, messages=[{"role": "system", "content": "a"}, *asked("b")], model=model)
    assert error.body["message"].endswith(f"does not converse; send one message, {step}") and error.param == "messages"


def test_what_is_no_json_names_no_field(served):
    answer = httpx.post(f"{served.url}/v1/completions", content="{", headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] is None


def test_a_model_of_images_says_where_they_are_sent(served):
    for route, field, model, words in (
        ("completions", "prompt", "nougat", "nougat reads images, not texts alone; send one as image_url to /v1/chat/"),
        ("embeddings", "input", "nougat", "nougat has embeddings of images alone; send one as data:image/png;base64,"),
        ("embeddings", "input", "llava", "llava has embeddings of images alone; send one as data:image/png;base64,"),
    ):
        error = httpx.post(f"{served.url}/v1/{route}", json={"model": f"mini-{model}", field: "a"}).json()["error"]
        assert error["message"].startswith(words) and error["param"] == field


# --- fields that are honoured ---
def test_logit_bias_is_each_requests_own_whatever_it_runs_with(client, t5):
    plain = t5.generate(text=TEXT)
    banned, forced = plain.token_ids[1], plain.token_ids[0]
    want = t5.generate(text=TEXT, logit_bias={banned: -100})
    assert want.text != plain.text and banned not in want.token_ids
    assert said(client, logit_bias={str(banned): -100}) == want.text
    beams = t5.generate(text=TEXT, logit_bias={banned: -2.5}, num_beams=3)
    assert said(client, logit_bias={str(banned): -2.5}, extra_body={"num_beams": 3}) == beams.text
    short = client.completions.create(model="mini-t5", prompt=TEXT, logit_bias={str(forced): 100}, max_tokens=3)
    expected = t5.generate(text=TEXT, logit_bias={forced: 100}, max_new_tokens=3)
    assert short.choices[0].text == expected.text and set(expected.token_ids) == {forced}


def test_tokens_and_words_that_may_or_may_not_come(client, t5):
    plain = t5.generate(text=TEXT)
    without = said(client, extra_body={"bad_words": ["Schiff"]})
    assert without == t5.generate(text=TEXT, bad_words=("Schiff",)).text != plain.text
    allowed = sorted({*plain.token_ids[:3], 1})
    some = said(client, extra_body={"allowed_token_ids": allowed}, max_tokens=8)
    assert some == t5.generate(text=TEXT, allowed_token_ids=tuple(allowed), max_new_tokens=8).text != plain.text


def test_beams_as_vllm_asks_for_them(client, t5):
    want = t5.generate(text=TEXT, num_beams=3, num_return_sequences=2, length_penalty=0.5, early_stopping=True)
    body = {"use_beam_search": True, "best_of": 3, "length_penalty": 0.5, "early_stopping": True}
    answer = client.completions.create(model="mini-t5", prompt=TEXT, n=2, extra_body=body)
    assert [c.text for c in answer.choices] == [want.text, want.alternatives[0].text]


def test_the_best_of_several(client, t5):
    drawn = t5.generate(text=TEXT, num_return_sequences=4, temperature=2.0, seed=5)
    drawn = [drawn, *drawn.alternatives]
    order = sorted(drawn, key=lambda o: o.cumulative_logprob / len(o.token_ids), reverse=True)
    options = {"model": "mini-t5", "prompt": TEXT, "temperature": 2, "seed": 5}
    answer = client.completions.create(**options, best_of=4, n=2)
    assert [(c.index, c.text) for c in answer.choices] == [(0, order[0].text), (1, order[1].text)]
    assert answer.usage.completion_tokens == sum(len(o.token_ids) for o in drawn)


def test_stop_strings_and_special_tokens_in_the_text(client):
    assert said(client, stop=["Schiff"]) == "Das alte "
    keep = {"include_stop_str_in_output": True}
    assert said(client, stop=["Schiff"], extra_body=keep) == "Das alte Schiff"
    stream = client.completions.create(model="mini-t5", prompt=TEXT, stop=["Schiff"], stream=True, extra_body=keep)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Das alte Schiff"
    assert said(client, extra_body={"skip_special_tokens": False}).removesuffix("</s>").strip() == GERMAN
    assert said(client, stop=["</s>"], extra_body={"skip_special_tokens": False}).strip() == GERMAN


def test_prompts_are_cut(client, t5):
    ids = t5.request({"text": TEXT}).encoder_input_ids
    for given in (TEXT, list(ids)):
        for most, want in ((5, 5), (1000, len(ids)), (-1, len(ids))):
            body = {"truncate_prompt_tokens": most}
            usage = client.completions.create(model="mini-t5", prompt=given, max_tokens=1, extra_body=body).usage
            assert usage.prompt_tokens == want
    usage = client.embeddings.create(model="mini-t5", input=TEXT, extra_body={"truncate_prompt_tokens": 4}).usage
    assert usage.prompt_tokens == 4


def test_a_final_message_is_gone_on_with(client, llava):
    whole = llava.generate(images=[SCENE], prompt=SIGN)
    begin = whole.text[: len(whole.text) // 2].rstrip()
    messages = [*asked(SIGN, SCENE), {"role": "assistant", "content": begin}]
    body = {"continue_final_message": True, "add_generation_prompt": False}
    rest = said(client, messages, "mini-llava", extra_body=body)
    parts = [{"type": "image", "image": SCENE}, {"type": "text", "text": SIGN}]
    turns = [{"role": "user", "content": parts}, messages[-1]]
    assert rest == llava.generate(messages=turns, continue_final_message=True).text
    with pytest.raises(openai.BadRequestError, match="end with one of the user, or go on with it"):
        said(client, messages, "mini-llava")


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_are_echoed(client, t5, stream):
    ids = list(t5.request({"text": TEXT}).encoder_input_ids)
    for prompt in (TEXT, ids):
        answer = client.completions.create(model="mini-t5", prompt=prompt, echo=True, n=2, seed=1, stream=stream)
        parts = [choice for chunk in (answer if stream else [answer]) for choice in chunk.choices]
        for index in (0, 1):
            assert "".join(c.text for c in parts if c.index == index).startswith(TEXT)


def test_only_prompts_that_the_engine_takes_are_decoded_for_their_echo(client, served, monkeypatch):
    decoded, tokenizer = [], served.service("mini-t5").pipeline.tokenizer
    monkeypatch.setattr(tokenizer, "decode", lambda ids, *rest: decoded.append(ids))
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError, match="context length"):
            client.completions.create(model="mini-t5", prompt=[5] * 2000, echo=True, stream=stream)
    assert not decoded


def test_tokens_named_by_their_ids(client, t5):
    body = {"return_tokens_as_token_ids": True}
    answer = client.completions.create(model="mini-t5", prompt=TEXT, logprobs=1, extra_body=body)
    assert answer.choices[0].logprobs.tokens == [f"token_id:{i}" for i in t5.generate(text=TEXT).token_ids[:-1]]


# --- messages ---
def test_messages_as_clients_write_them(client):
    text = {"type": "text", "text": TEXT}
    for content in (TEXT, [text], [{"type": "input_text", "text": TEXT}], [TEXT]):
        message = {"role": "user", "name": "anna", "content": content}
        assert said(client, [message]) == GERMAN
    first = {"role": "user", "content": "Is this a scene?"}
    empty = {"role": "assistant", "content": None, "refusal": None, "tool_calls": None, "function_call": None}
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}
    for answer in (empty, {**empty, "content": ""}, {"role": "assistant", "tool_calls": []}, refused):
        assert said(client, [{"role": "developer", "content": "a"}, first, answer, first], "mini-llava", max_tokens=3)


@pytest.mark.parametrize(("message", "words"), [
    ({"role": "tool", "content": "a", "tool_call_id": "1"}, "role 'tool'"),
    ({"role": "function", "content": "a", "name": "f"}, "role 'function'"),
    ({"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}, "tool_calls, which is not supported"),
    ({"role": "user", "content": None}, "message 1 needs a content"),
    ({"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}, "'input_au"),
    ({"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:"}}]}, "type 'video_url'; allowed"),
    ({"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}, "file without file_data"),
    ({"role": "user", "content": [{"type": ["text"]}]}, "allowed are text"), ({"content": "a"}, "of no role"),
    ({"role": "user", "content": [{"text": "a"}]}, "a part of no type"),
    ({"role": "user", "content": [{"type": "text", "text": None}]}, "a part of type 'text' whose text is no string"),
    ({"role": "assistant", "content": [{"type": "refusal"}]}, "type 'refusal' whose refusal is no string; give one"),
])  # fmt: skip
def test_messages_that_are_not_read(client, message, words):
    error = refusal(client, messages=[message], model="mini-llava")
    assert words in error.body["message"] and error.param == "messages"


def test_data_uris_in_any_writing(client, llava):
    data = SCENE.read_bytes()
    plain = base64.b64encode(data).decode()
    forms = [
        f"DATA:image/PNG;Base64,{plain}", f"data:image/png;charset=utf-8;base64,{plain}", f"Data:;BASE64,{plain}",
        f"data:image/png;base64,{urllib.parse.quote(plain, safe='')}", f"data:image/png;base64,{plain.rstrip('=')}",
        f"data:image/png;base64,{base64.urlsafe_b64encode(data).decode()}",
        f"data:image/png;base64,{base64.encodebytes(data).decode()}",
    ]  # fmt: skip
    assert all(decode_data_uri(form) == data for form in forms)
    parts = [{"type": "image_url", "image_url": {"url": forms[0], "detail": "low"}}, {"type": "text", "text": SIGN}]
    want = llava.generate(images=[SCENE], prompt=SIGN).text
    assert said(client, [{"role": "user", "content": parts}], "mini-llava") == want
    parts[0] = {"type": "input_image", "image_url": forms[1]}
    assert said(client, [{"role": "user", "content": parts}], "mini-llava") == want
    vector = client.embeddings.create(model="mini-llava", input=[forms[0], data_uri(SCENE)]).data
    assert vector[0].embedding == vector[1].embedding


# --- embeddings ---
@pytest.mark.parametrize("form", ["float", "base64"])
def test_embeddings_are_shortened_and_at_unit_length_again(client, form):
    whole = np.array(client.embeddings.create(model="mini-t5", input=TEXT).data[0].embedding)
    found = client.embeddings.create(model="mini-t5", input=TEXT, dimensions=7, encoding_format=form).data[0].embedding
    found = np.frombuffer(base64.b64decode(found), "<f4") if form == "base64" else np.array(found)
    np.testing.assert_allclose(found, whole[:7] / np.linalg.norm(whole[:7]), atol=1e-6)
    assert len(client.embeddings.create(model="mini-t5", input=TEXT, dimensions=len(whole)).data[0].embedding) > 7
    with pytest.raises(openai.BadRequestError, match=f"dimensions is {len(whole) + 1}, the embeddings of mini-t5 have"):
        client.embeddings.create(model="mini-t5", input=TEXT, dimensions=len(whole) + 1)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="mini-t5", input=TEXT, dimensions=0)


def test_many_inputs_have_embeddings(client, t5):
    """More than are encoded at once, as clients batch them; ids as a list of lists."""
    texts = [f"{TEXT} {i}" for i in range(70)]
    ids = [list(t5.request({"text": text}).encoder_input_ids) for text in texts]
    found = [[row.embedding for row in client.embeddings.create(model="mini-t5", input=x).data] for x in (texts, ids)]
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    np.testing.assert_allclose(
        found[0][69], client.embeddings.create(model="mini-t5", input=texts[69]).data[0].embedding
    )


# --- answers ---
def test_answers_have_what_clients_read(client):
    raw = client.chat.completions.with_raw_response.create(
        model="mini-t5", messages=[{"role": "user", "content": TEXT}], extra_headers={"X-Request-Id": "mine-1"},
        extra_body={"request_id": "abc"},
    )  # fmt: skip
    answer = json.loads(raw.content)
    assert raw.headers["x-request-id"] == "mine-1" and raw.parse()._request_id == "mine-1"
    assert answer["id"] == "chatcmpl-abc" and answer["object"] == "chat.completion"
    assert answer["system_fingerprint"].startswith("vlm-")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": GERMAN, "refusal": None}
    assert len(client.models.list()._request_id) == 32


def test_usage_within_streams(client):
    ask = {"model": "mini-t5", "messages": [{"role": "user", "content": TEXT}], "stream": True}
    assert all(chunk.usage is None for chunk in client.chat.completions.create(**ask))
    for continuous in (False, True):
        options = {"include_usage": True, "continuous_usage_stats": continuous}
        *chunks, last = client.chat.completions.create(**ask, stream_options=options)
        assert last.choices == [] and last.usage.completion_tokens > 3
        assert [bool(chunk.usage) for chunk in chunks] == [continuous] * len(chunks)
        assert not continuous or chunks[-1].usage == last.usage


@pytest.mark.parametrize(("method", "path", "words"), [
    ("POST", "/v1/responses", "/v1/responses is not served here"), ("POST", "/v1/audio/speech", "base_url ends in /v1"),
    ("POST", "/chat/completions", "base_url ends in /v1"), ("GET", "/v1/models/nothing", "there is mini-llava"),
])  # fmt: skip
def test_what_is_not_there_has_openais_shape(served, method, path, words):
    answer = httpx.request(method, served.url + path, json={} if method == "POST" else None)
    error = answer.json()["error"]
    assert answer.status_code == 404 and error["type"] == "not_found_error" and words in error["message"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("more", [
    {"\ud800": 1}, {"x" * 10**6: 1}, {"request_id": "\ud800"}, {"request_id": "a\nb"}, {"temperature": float("nan")},
    {"logit_bias": {"3": float("inf")}}, {"logit_bias": {f"a{i}": 1 for i in range(50_000)}},
    {"logit_bias": {str(i): 1000 for i in range(50_000)}}, {"bad_words": ["\ud800"]}, {"bad_words": [""] * 10**5},
    {"tool_choice": "\ud800"}, {"stop": ["\ud800"], "skip_special_tokens": "perhaps"}, {"n": [1]}, {"model": None},
], ids=lambda more: ascii(more)[:40])  # fmt: skip
def test_hostile_values_get_a_short_sentence(served, more):
    body = json.dumps({"model": "mini-t5", "messages": [{"role": "user", "content": TEXT}], **more})
    headers = {"content-type": "application/json", "x-request-id": "a" * 1000}
    answer = httpx.post(f"{served.url}/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["message"].endswith(".") and len(answer.content) < 1500 and len(answer.headers["x-request-id"]) == 32


def test_slashes_at_the_end(served, client):
    assert client.models.retrieve("mini-t5/").id == "mini-t5"
    assert len(httpx.get(f"{served.url}/v1/models/").json()["data"]) == 3
    with openai.OpenAI(base_url=f"{served.url}/v1/", api_key="none") as other:
        assert said(other) == GERMAN


def test_errors_name_field_and_code(served, client):
    assert refusal(client, temperature=9).param == "temperature"
    long = refusal(client, max_tokens=10**6)
    assert (long.code, long.type) == ("context_length_exceeded", "invalid_request_error")
    with pytest.raises(openai.NotFoundError) as missing:
        said(client, model="gpt-4o")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    broken = httpx.post(
        f"{served.url}/v1/chat/completions", content='{"model": ', headers={"content-type": "application/json"}
    )
    said_of_it = "the request is no JSON: Expecting value at column 11; correct it there."
    assert broken.status_code == 400 and broken.json()["error"]["message"] == said_of_it
    listed = httpx.post(f"{served.url}/v1/chat/completions", json=[1])
    assert listed.status_code == 400 and listed.json()["error"]["message"].endswith(".")
