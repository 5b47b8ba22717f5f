"""Prompts that are echoed with their log-probabilities, by OpenAI's own client and as lm-evaluation-harness asks."""

from __future__ import annotations

import openai
import pytest

from tests.kits.servers import server_kit

MODELS = ("mini-llava", "mini-t5")
PROMPT = "How many objects are there?"


@pytest.fixture(scope="module")
def alone():
    return server_kit.alone("mini-llava")


def completed(client, prompt, *, stream=False, **more):
    """Returns (text, columns of log-probabilities, finish reasons) of one choice, its parts put together."""
    answer = client.completions.create(
        model="mini-llava", prompt=prompt, temperature=0, echo=True, stream=stream, **more
    )
    parts = [choice for chunk in (answer if stream else [answer]) for choice in chunk.choices]
    columns = {}
    for part in parts:
        for name, values in (part.logprobs.model_dump() if part.logprobs else {}).items():
            columns[name] = columns.get(name, []) + values
    return "".join(part.text for part in parts), columns, [p.finish_reason for p in parts if p.finish_reason]


def scored(alone, ids, **more):
    return alone.generate(decoder_prompt_token_ids=ids, prompt_logprobs=2, top_logprobs=2, temperature=0, **more)


def ids_of(alone, prompt):
    return list(alone.request({"raw_prompt": prompt}).decoder_prompt_token_ids)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_echoed_prompts_are_scored(client, alone, stream, as_ids):
    ids = ids_of(alone, PROMPT)
    text, columns, ends = completed(client, ids if as_ids else PROMPT, stream=stream, logprobs=2, max_tokens=3)
    want = scored(alone, ids, max_new_tokens=3)
    own = [None, *(places[i] for i, places in zip(ids[1:], want.prompt_logprobs[1:], strict=True)), *want.logprobs]
    assert text.startswith(PROMPT) and len(ends) == 1
    assert columns["token_logprobs"][0] is None and columns["top_logprobs"][0] is None
    assert columns["token_logprobs"][1:] == pytest.approx(own[1:], abs=1e-4)
    assert {len(column) for column in columns.values()} == {len(own)}
    for value, top in zip(columns["token_logprobs"][1:], columns["top_logprobs"][1:], strict=True):
        assert 1 <= len(top) <= 3 and value <= max(top.values())
    places = columns["text_offset"]
    assert places == sorted(places) and places[len(ids)] == len(PROMPT)
    assert all(text.startswith(t, at) for t, at in zip(columns["tokens"], places, strict=True) if not t.startswith("<"))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_prompts_alone(client, alone, stream, logprobs):
    ids, asked = ids_of(alone, PROMPT), {} if logprobs is None else {"logprobs": logprobs}
    text, columns, ends = completed(client, PROMPT, stream=stream, max_tokens=0, **asked)
    assert text == PROMPT and ends == ["length"]
    assert len(columns.get("tokens", ids)) == len(ids)
    answer = client.completions.create(model="mini-llava", prompt=PROMPT, echo=True, max_tokens=0)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(ids), 0)


def test_lm_eval_finds_each_continuation(client, alone):
    """A batch of token ids, one token more than is scored, which it leaves out even where the text ends in it."""
    ids = ids_of(alone, "USER: Read the sign. ASSISTANT:")
    out = alone.generate(decoder_prompt_token_ids=ids, temperature=0)
    assert out.finish_reason == "eos" and len(out.token_ids) > 1
    whole = ids + out.token_ids[:-1]  # what follows is the end
    batch, begins = [whole, ids], [len(ids), 1]
    answer = client.completions.create(
        model="mini-llava", prompt=batch, temperature=0, max_tokens=1, logprobs=1, seed=1234, echo=True
    )
    for choice, tokens, begin in zip(sorted(answer.choices, key=lambda c: c.index), batch, begins, strict=True):
        own, top = choice.logprobs.token_logprobs[begin:-1], choice.logprobs.top_logprobs[begin:-1]
        want = scored(alone, tokens, max_new_tokens=1).prompt_logprobs[begin:]
        assert own == pytest.approx([each[i] for i, each in zip(tokens[begin:], want, strict=True)], abs=1e-4)
        greedy = all(value == max(each.values()) for value, each in zip(own, top, strict=True))
        assert greedy == (tokens is whole)


def test_prompt_logprobs_as_vllm_has_them(client, alone):
    ids = ids_of(alone, PROMPT)
    asked = {"model": "mini-llava", "extra_body": {"prompt_logprobs": 2}, "max_tokens": 1}
    [choice] = client.completions.create(prompt=PROMPT, **asked).choices
    want = scored(alone, ids, max_new_tokens=1).prompt_logprobs
    assert len(choice.prompt_logprobs) == len(want) and choice.prompt_logprobs[0] is None
    for token, got, own in zip(ids[1:], choice.prompt_logprobs[1:], want[1:], strict=True):
        assert {int(i): each["logprob"] for i, each in got.items()} == pytest.approx(own, abs=1e-4)
        ranks = {each["rank"] for i, each in got.items() if each["rank"]}
        assert {1, 2} <= ranks <= {1, 2, 3} and got[str(token)]["decoded_token"] is not None
    with pytest.raises(openai.BadRequestError, match="prompt_logprobs are not streamed") as refused:
        client.completions.create(prompt=PROMPT, stream=True, **asked)
    assert refused.value.param == "prompt_logprobs"


def test_what_has_no_scores_is_refused(client):
    for body, said, param in (
        ({"model": "mini-t5", "echo": True, "logprobs": 1}, "reads the prompt by its encoder", "echo"),
        ({"model": "mini-t5", "max_tokens": 0}, "nothing without echo=true", "max_tokens"),
        ({"model": "mini-llava", "echo": True, "logprobs": 1, "extra_body": {"num_beams": 2}}, "num_beams", None),
    ):
        with pytest.raises(openai.BadRequestError, match=said) as refused:
            client.completions.create(prompt="A prompt.", **body)
        assert param is None or refused.value.param == param


def test_scores_of_prompts_have_a_budget(client):
    with pytest.raises(openai.BadRequestError, match="log-probabilities"):
        client.completions.create(
            model="mini-llava", prompt=[[5] * 200] * 64, echo=True, logprobs=20, max_tokens=1, n=64, temperature=1
        )
    with pytest.raises(openai.BadRequestError, match="send fewer prompts at once"):  # a character may be four tokens
        client.completions.create(
            model="mini-llava", prompt=["\U0001f642" * 100] * 64, echo=True, logprobs=20, max_tokens=1
        )
