"""Which fields of OpenAI's and vLLM's requests are read, and what is said of all others at once."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import Headers

from vlm_app.server.core import errors
from vlm_app.server.http.checks import content_type
from vlm_app.server.openai.schema import ChatBody, CompletionBody

ROUTE = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "a"}]
FORM = "say in the text which form the answer is to have."


def told(body: Any, kind: type = ChatBody, route: str = ROUTE) -> dict[str, Any]:
    """Returns the error that a body gets."""
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(body, from_attributes=True)
    entries = [{**entry, "loc": ("body", *entry["loc"])} for entry in caught.value.errors()]
    return errors.body(RequestValidationError(entries), route)["error"]


@pytest.mark.parametrize(("fields", "sentence"), [
    ({"tools": [{}]}, f"tools is not supported; leave it out, and {FORM}"),
    ({"tools": [{}], "tool_choice": "required"},
     f"tools, tool_choice 'required' are not supported; leave them out, and {FORM}"),
    ({"audio": {"a": 1}, "cache_salt": "s"}, "audio, cache_salt 's' are not supported; leave them out."),
    ({"keep_alive": "5m"}, "'keep_alive' is no field of this route; leave it out."),
    ({"max_token": 5}, "'max_token' is no field of this route (is it max_tokens?); leave it out."),
    ({"top_a": 0, "typical_p": 1}, "'top_a', 'typical_p' are no fields of this route; leave them out."),
    ({"keep_alive": 1, "response_format": {"type": "json_object"}},
     f"response_format is not supported, 'keep_alive' is no field of this route; leave them out, and {FORM}"),
])  # fmt: skip
def test_all_fields_that_are_not_done_are_told_of_at_once(fields, sentence):
    error = told({"model": "m", "messages": MESSAGES, "parallel_tool_calls": False, **fields})
    assert error["message"] == sentence
    assert error["param"] == sentence.partition(" ")[0].strip("',")


def test_many_fields_are_told_of_in_one_sentence():
    error = told({"model": "m", "messages": MESSAGES, **{f"field number {i} \n" * 20: 1 for i in range(50)}})
    assert error["message"].endswith("leave them out.") and len(error["message"]) <= 1000


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody])
def test_options_of_streams_that_there_are_not_are_refused(kind):
    body = {"model": "m", "messages": MESSAGES} if kind is ChatBody else {"model": "m", "prompt": "a"}
    error = told({**body, "stream_options": {"include_usages": True}}, kind)
    assert error["param"] == "stream_options"
    assert error["message"] == (
        "stream_options has 'include_usages', which is none of its fields (is it include_usage?); leave it out."
    )
    options = {"include_usage": True, "include_obfuscation": False, "other": None}
    kind.model_validate({**body, "stream_options": options})


def test_what_asks_for_nothing_is_read_as_if_it_were_left_out():
    body = {"model": "m", "messages": MESSAGES, "tools": [], "tool_choice": "auto", "unheard_of": None, "user": "me"}
    assert ChatBody.model_validate(body) == ChatBody.model_validate({"model": "m", "messages": MESSAGES})
    assert CompletionBody.model_validate({"model": "m", "prompt": "a", "suffix": ""}).prompts == ["a"]


@pytest.mark.parametrize(("body", "param", "sentence"), [
    ([], None, 'the request is no JSON object; send one that has the fields of this route: {"model": …}.'),
    (None, None, 'the request is no JSON object; send one that has the fields of this route: {"model": …}.'),
    ({"model": "m", "messages": []}, "messages", "messages: it has 0 entries; give at least one."),
    ({"model": "m", "messages": ["hi"]}, "messages", "messages.0: Input should be an object."),
    ({"model": "m", "messages": MESSAGES, "stream_options": 1}, "stream_options",
     "stream_options: Input should be an object."),
])  # fmt: skip
def test_what_has_another_form_is_told_in_jsons_words(body, param, sentence):
    error = told(body)
    assert (error["message"], error["param"]) == (sentence, param)


@pytest.mark.parametrize(("path", "status"), [
    ("/v1/audio/transcriptions", 404), ("/v1/files", 404), ("/v1/images/edits", 404), (ROUTE, 415), (f"{ROUTE}/", 415),
    ("/v2/models/m/infer", 415),
])  # fmt: skip
def test_forms_are_told_that_nothing_is_served_there(path, status):
    headers = Headers({"content-type": "multipart/form-data; boundary=a", "content-length": "9"})
    refusal = content_type({"path": path}, headers)
    assert refusal is not None and refusal.status_code == status
    said = errors.sentence(refusal, path) if status == 415 else errors.body(refusal, path)["error"]["message"]
    assert ("application/json" in said) == (status == 415)
    assert said.startswith(f"{path} is not served here; there are {ROUTE}") == (status == 404)
