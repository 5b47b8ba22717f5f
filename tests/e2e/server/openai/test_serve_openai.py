"""OpenAI's own client against `vlm serve`."""

from __future__ import annotations

import base64
import math

import numpy as np
import openai
import pytest

from tests.kits.servers import server_kit
from tests.kits.servers.server_kit import EXAMPLES, asked, data_uri, is_empty, until

SCENES = [EXAMPLES / f"scene{i}.png" for i in (1, 2, 3)]
QUESTION, SIGN = "How many objects are there?", "Read the sign."
MODELS = ("mini-llava", "mini-blip2", "mini-t5", "mini-nougat")


@pytest.fixture(scope="module")
def alone():
    """The model by itself, an input at a time."""
    return server_kit.alone("mini-llava")


def test_a_chat_with_an_image_answers_as_the_pipeline_does(client, alone):
    answer = client.chat.completions.create(model="mini-llava", messages=asked(QUESTION, SCENES[0]))
    expected = alone.generate(images=[SCENES[0]], prompt=QUESTION)
    [choice] = answer.choices
    assert choice.message.content == expected.text and expected.text
    assert choice.finish_reason == "stop"
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer.usage.prompt_tokens > alone.processor.vision.max_rows


def test_a_stream_is_the_answer_in_pieces(client, alone):
    messages = asked(SIGN, SCENES[1])
    stream = client.chat.completions.create(
        model="mini-llava", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expected = alone.generate(images=[SCENES[1]], prompt=SIGN)
    assert text == expected.raw_text
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == len(expected.token_ids)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_the_tokens(client, alone, stream):
    options = {"model": "mini-llava", "messages": asked(SIGN, SCENES[0]), "logprobs": True}
    answer = client.chat.completions.create(**options, top_logprobs=3, stream=stream)
    parts = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    rows = [row for part in parts if part.logprobs for row in part.logprobs.content]
    expected = alone.generate(images=[SCENES[0]], prompt=SIGN)
    assert "".join(row.token for row in rows) == expected.raw_text
    assert [row.logprob for row in rows] == pytest.approx(expected.logprobs[:-1], abs=1e-4)
    for row in rows:
        assert len(row.top_logprobs) == 3 and row.top_logprobs[0].token == row.token
        assert bytes(row.bytes).decode() == row.token and math.exp(row.logprob) <= 1.0001


def test_several_images_and_turns_are_one_conversation(client, alone):
    first = asked("Are these two images the same?", SCENES[0], SCENES[1])
    more = [*first, {"role": "assistant", "content": "no"}, {"role": "user", "content": "What differs?"}]
    answer = client.chat.completions.create(model="mini-llava", messages=more, max_tokens=20)
    parts = [{"type": "image", "image": SCENES[0]}, {"type": "image", "image": SCENES[1]}]
    parts.append({"type": "text", "text": "Are these two images the same?"})
    turns = [{"role": "user", "content": parts}, *more[1:]]
    assert answer.choices[0].message.content == alone.generate(messages=turns, max_new_tokens=20).text


def test_samples_differ_and_come_again_with_their_seed(client):
    text = "translate English to German: The meeting is on Friday, 3 May 2019 at 4:15 pm."

    def ask(**more) -> list[str]:
        answer = client.chat.completions.create(model="mini-t5", messages=[{"role": "user", "content": text}], **more)
        return [choice.message.content for choice in answer.choices]

    first = ask(n=3, temperature=2, seed=7)
    assert len(set(first)) > 1
    assert ask(n=3, temperature=2, seed=7) == first
    assert ask(temperature=2, seed=8) == first[1:2]
    assert len(ask(n=2)) == 2  # as OpenAI has it, several are drawn at temperature 1


def test_a_stop_string_ends_the_answer_before_it(client, alone):
    whole = alone.generate(images=[SCENES[0]], prompt=SIGN).text
    word = whole[-2:]
    ask = {"model": "mini-llava", "messages": asked(SIGN, SCENES[0]), "stop": [word]}
    answer = client.chat.completions.create(**ask)
    assert answer.choices[0].message.content == whole[: whole.index(word)]
    streamed = client.chat.completions.create(**ask, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == whole[: whole.index(word)]


def test_beams_are_choices_best_first(client, alone):
    ask = {"model": "mini-llava", "messages": asked(SIGN, SCENES[0]), "n": 2}
    answer = client.chat.completions.create(**ask, extra_body={"num_beams": 3})
    best = alone.generate(images=[SCENES[0]], prompt=SIGN, num_beams=3, num_return_sequences=2)
    assert [c.message.content for c in answer.choices] == [best.text, best.alternatives[0].text]


def test_models_that_do_not_converse_take_one_message(client):
    page = client.chat.completions.create(model="mini-nougat", messages=asked("", EXAMPLES / "page.png"))
    assert page.choices[0].message.content.strip() == (EXAMPLES / "page.txt").read_text().strip()
    text = "translate English to German: The old ship is small."
    translated = client.chat.completions.create(model="mini-t5", messages=[{"role": "user", "content": text}])
    assert translated.choices[0].message.content == "Das alte Schiff ist klein."
    seen = client.chat.completions.create(model="mini-blip2", messages=asked(QUESTION, SCENES[0]))
    expected = server_kit.alone("mini-blip2").generate(images=[SCENES[0]], prompt=QUESTION)
    assert seen.choices[0].message.content == expected.text


def test_a_stream_that_is_left_is_aborted(client, served):
    messages = asked(SIGN, SCENES[0])
    options = {"temperature": 1.0, "max_tokens": 200, "extra_body": {"ignore_eos": True}}
    stream = client.chat.completions.create(model="mini-llava", messages=messages, stream=True, **options)
    next(iter(stream))
    stream.close()
    service = served.service("mini-llava")
    until(lambda: service.room.held == 0 and is_empty(service.pipeline))


def test_completions_of_texts_and_ids_whole_and_streamed(client):
    texts = ["translate English to German: The old ship is small.", "translate English to German: 3 May 2019"]
    model = server_kit.alone("mini-t5")
    expected = [model.generate(text=text) for text in texts]
    whole = client.completions.create(model="mini-t5", prompt=texts, logprobs=2)
    assert [choice.text for choice in whole.choices] == [output.text for output in expected]
    for choice, output in zip(whole.choices, expected, strict=True):
        assert "".join(choice.logprobs.tokens) == output.raw_text
        assert choice.logprobs.token_logprobs == pytest.approx(output.logprobs[:-1], abs=1e-4)
        assert choice.logprobs.text_offset[1] == len(choice.logprobs.tokens[0])
        assert all(max(top, key=top.get) == token for token, top in zip(*_best(choice), strict=True))
    ids = [list(model.request(text).encoder_input_ids) for text in texts]
    pieces = {0: "", 1: ""}
    for chunk in client.completions.create(model="mini-t5", prompt=ids, stream=True):
        pieces[chunk.choices[0].index] += chunk.choices[0].text
    assert list(pieces.values()) == [output.raw_text for output in expected]


def _best(choice):
    return choice.logprobs.tokens, choice.logprobs.top_logprobs


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == list(MODELS)
    assert client.models.retrieve("mini-t5").id == "mini-t5"


@pytest.mark.parametrize("form", ["float", "base64"])
def test_embeddings_are_the_encoders_means(client, form):
    model = server_kit.alone("mini-t5")
    texts = ["translate English to German: a", "summarize: the old ship"]
    answer = client.embeddings.create(model="mini-t5", input=texts, encoding_format=form)
    found = [row.embedding for row in answer.data]
    if form == "base64":
        found = [np.frombuffer(base64.b64decode(row), "<f4") for row in found]
    states = [encoding.last_hidden_state.mean(0) for encoding in model.encode(texts)]
    expected = [(state / state.norm()).tolist() for state in states]
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-5)


def test_images_have_embeddings_too(client, alone):
    answer = client.embeddings.create(model="mini-llava", input=[data_uri(SCENES[0]), data_uri(SCENES[1])])
    state = alone.encode(SCENES[0]).last_hidden_state.mean(0)
    np.testing.assert_allclose(answer.data[0].embedding, (state / state.norm()).tolist(), atol=1e-5)
    assert answer.usage.prompt_tokens == 2 * alone.processor.vision.max_rows
    with pytest.raises(openai.BadRequestError, match="embeddings of images alone; send one as data:image"):
        client.embeddings.create(model="mini-llava", input="a text")
