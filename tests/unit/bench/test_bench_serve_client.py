"""`vlm bench serve` against servers that do well, badly, or something else."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from aiohttp import web

from tests.kits.servers.openai_kit import DONE, Answer, FakeServer, chunk, stream, usage, well
from vlm.errors import InputError
from vlm_app.bench.serving.config import ServeBenchConfig
from vlm_app.bench.serving.job import serve


def bench(server: FakeServer, *others: str, **fields) -> dict:
    few = {"num_prompts": 6, "num_warmups": 1, "output_len": (4, 4), "input_len": (20, 40), "endpoint": "completions"}
    return serve(ServeBenchConfig(urls=(server.url, *others), **few | fields))


def of_the_load(answer: Answer) -> Answer:
    """Answers well before the load: to the first request, two that tell words and lengths, and the warm-up."""
    asked = itertools.count(1)

    async def answered(http: web.Request, body: dict) -> web.StreamResponse:
        return await (well if next(asked) <= 4 else answer)(http, body)

    return answered


def test_a_server_that_does_well():
    with FakeServer().listening() as server:
        result = bench(server, request_rates=(200.0, float("inf")), api_key="k", seed=1)
    assert [row["request_rate"] for row in result["rows"]] == [200.0, "inf"]
    for row in result["rows"]:
        assert (row["completed"], row["failed"], row["tokens_counted_by"]) == (6, 0, "usage")
        assert row["output_tokens"] == {"mean": 4, "min": 4, "max": 4} and row["tokens_per_chunk"] == 1
        assert 20 <= row["input_tokens"]["min"] <= row["input_tokens"]["max"] <= 40
    assert result["targets"] == [
        {
            "name": server.url,
            "model": "fake",
            "takes": {"full_length": "ignore_eos", "usage": True},
            "words_per_token": 1.0,
            "first_request_ttft_ms": result["targets"][0]["first_request_ttft_ms"],
        }
    ]
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer k"}
    prompts = [body["prompt"] for body in server.bodies]
    assert len(prompts) == len(set(prompts)) == 3 + 1 + 2 * 6, "no cache helps"
    assert all(body["ignore_eos"] and body["stream_options"] == {"include_usage": True} for body in server.bodies)


def test_the_same_prompts_for_every_server():
    with FakeServer().listening() as one, FakeServer(models=[{"id": "other"}]).listening() as two:
        result = bench(one, f"rival={two.url}/v1/", request_rates=(500.0,))
    assert [target["model"] for target in result["targets"]] == ["fake", "other"]
    assert [row["target"] for row in result["rows"]] == [one.url, "rival"]
    assert sorted(body["prompt"] for body in one.bodies) == sorted(body["prompt"] for body in two.bodies)


async def _no_usage(http, body):
    return await stream(http, [chunk("a"), chunk("b"), chunk("", "length"), DONE])


async def _no_done(http, body):
    return await stream(http, [chunk("a"), chunk("b", "stop")])


async def _split(http, body):
    whole = chunk("ä") + chunk("b").replace(b"\n\n", b"\r\n\r\n") + b": ping\n\n" + chunk("", "length") + DONE
    return await stream(http, [whole[at : at + 1] for at in range(len(whole))])


async def _textless(http, body):
    """Tokens that are no text, as after an end that is ignored."""
    return await stream(http, [chunk("", "length"), usage(20, 4), DONE])


@pytest.mark.parametrize(
    ("answer", "chunks", "tokens"), [(_no_usage, 2, 2), (_no_done, 2, 2), (_split, 2, 2), (_textless, 1, 4)]
)
def test_streams_of_other_servers_are_read(answer, chunks, tokens):
    with FakeServer(answer).listening() as server:
        [row] = bench(server)["rows"]
    assert (row["completed"], row["failed"]) == (6, 0)
    assert row["output_tokens"]["mean"] == tokens and row["tokens_per_chunk"] == tokens / chunks


def test_an_opening_with_the_role_is_no_token():
    opening = b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}\n\n'
    textless = b'data: {"choices": [{"delta": {}, "finish_reason": null}]}\n\n'
    text = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": null}]}\n\n'
    end = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'

    async def answer(http, body):
        return await stream(http, [opening, text, textless, text, end, DONE])

    with FakeServer(answer).listening() as server:
        [row] = bench(server, endpoint="chat")["rows"]
    assert row["output_tokens"]["mean"] == 3 and server.bodies[0]["messages"][0]["role"] == "user"


async def _refused(http, body):
    return web.json_response({"error": {"message": "too many"}}, status=429)


async def _broken(http, body):
    return await stream(http, [chunk("a"), b'data: {"error": {"message": "out of memory"}}\n\n', DONE])


async def _cut(http, body):
    return await stream(http, [chunk("a"), chunk("b")], cut=True)


async def _short(http, body):
    return await stream(http, [chunk("a"), b'data: {"choi'])


async def _unfinished(http, body):
    return await stream(http, [chunk("a")])


async def _no_json(http, body):
    return await stream(http, [b"data: {nonsense\n\n", DONE])


async def _odd(http, body):
    return await stream(http, [b'data: [1]\n\ndata: {"choices": 3}\n\n', DONE])


async def _endless(http, body):
    return await stream(http, [b"data: " + b"x" * 2**19] * 3)


async def _nothing(http, body):
    return await stream(http, [DONE])


async def _whole(http, body):
    return web.json_response({"choices": [{"text": "a"}]})


async def _moved(http, body):
    return web.Response(status=307, headers={"Location": "http://127.0.0.1:9/"})


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        (_refused, "HTTP 429", "too many"),
        (_broken, "error in the stream", "out of memory"),
        (_cut, "connection lost", ""),
        (_short, "malformed stream", "JSONDecodeError"),
        (_unfinished, "cut off", "without its last event"),
        (_no_json, "malformed stream", "JSONDecodeError"),
        (_odd, "malformed stream", "an event is [1]"),
        (_endless, "malformed stream", "larger than"),
        (_nothing, "no tokens", "has none"),
        (_whole, "no event stream", "application/json"),
        (_moved, "HTTP 307", ""),
    ],
)
def test_failures_have_kinds(answer, kind, message):
    with FakeServer(of_the_load(answer)).listening() as server:
        [row] = bench(server)["rows"]
    assert (row["completed"], row["failed"]) == (0, 6) and list(row["failures"]) == [kind]
    assert row["failures"][kind]["count"] == 6 and message in row["failures"][kind]["message"]


async def _forever(http, body):
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(http)
    await asyncio.Event().wait()
    return answer


def test_a_request_that_takes_too_long_has_failed():
    with FakeServer(of_the_load(_forever)).listening() as server:
        [row] = bench(server, timeout=2.0)["rows"]
    assert row["failures"]["timeout"]["count"] == 6


def test_some_fail_and_the_others_count():
    asked = []

    async def every_other(http, body):
        asked.append(body)
        return await (_refused if len(asked) % 2 else well)(http, body)

    with FakeServer(of_the_load(every_other)).listening() as server:
        [row] = bench(server, goodput=("ttft:10000",))["rows"]
    assert (row["completed"], row["failed"]) == (3, 3) and row["goodput"]["share"] == 0.5


def test_no_more_are_on_their_way_than_were_asked_for():
    with FakeServer().listening() as server:
        [row] = bench(server, num_prompts=20, max_concurrency=2)["rows"]
    assert row["peak_concurrency"] == 2 and row["completed"] == 20 and row["client"]["queued_ms"]["max"] > 0


def test_an_open_loop_does_not_wait_for_answers():
    """No request is answered before the last one has come."""
    waiting, all_came = [], asyncio.Event()

    async def together(http, body):
        waiting.append(body)
        if len(waiting) == 6:
            all_came.set()
        await all_came.wait()
        return await well(http, body)

    with FakeServer(of_the_load(together)).listening() as server:
        [row] = bench(server, request_rates=(100.0,))["rows"]
    assert row["completed"] == 6 and row["peak_concurrency"] == 6


@pytest.mark.parametrize(
    ("unknown", "full_length", "usage_told"),
    [
        ({"ignore_eos"}, "min_tokens", True),
        ({"ignore_eos", "min_tokens"}, None, True),
        ({"ignore_eos", "min_tokens", "stream_options"}, None, False),
    ],
)
def test_fields_that_a_server_refuses_are_left_out(unknown, full_length, usage_told):
    async def strict(http, body):
        if refused := sorted(unknown & body.keys()):
            return web.json_response({"detail": f"unknown: {refused[0]}"}, status=422)
        return await (well if usage_told else _no_usage)(http, body)

    with FakeServer(strict).listening() as server:
        result = bench(server)
    assert result["targets"][0]["takes"] == {"full_length": full_length, "usage": usage_told}
    assert result["rows"][0]["failed"] == 0
    assert all(body.get("min_tokens", 4) == 4 and not unknown & body.keys() for body in server.bodies[-7:])


def test_more_fields_win():
    with FakeServer().listening() as server:
        bench(server, extra_body={"temperature": 1, "top_p": 0.5}, ignore_eos=False)
    assert all(body["temperature"] == 1 and body["top_p"] == 0.5 for body in server.bodies)
    assert not any("ignore_eos" in body or "min_tokens" in body for body in server.bodies)


def test_a_dataset_is_sent_in_order(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"p{n}", "output_tokens": n + 1}) for n in range(3)))
    with FakeServer().listening() as server:
        result = bench(server, dataset_path=path, input_len=None, num_prompts=None, request_rates=(50.0,))
        assert result["config"]["num_prompts"] == 3 and result["config"]["dataset_path"] == "p.jsonl"
        sent = [(body["prompt"], body["max_tokens"]) for body in server.bodies[-3:]]
        assert sent == [("p0", 1), ("p1", 2), ("p2", 3)]
        assert bench(server, dataset_path=path, input_len=None, num_prompts=5)["rows"][0]["completed"] == 5


# --- what is refused before the load ---
async def _forbidden(http, body):
    return web.json_response({"error": {"message": "Invalid API key."}}, status=401)


@pytest.mark.parametrize(
    ("server", "fields", "says"),
    [
        (
            FakeServer(models=[{"id": "a"}, {"id": "b"}]),
            {},
            "does not serve one model alone; give --model, one of: a, b",
        ),
        (FakeServer(), {"model": "x"}, "has no model 'x'; give --model, one of: fake"),
        (FakeServer(_forbidden), {}, "before the load: HTTP 401, Invalid API key; give --api-key."),
        (FakeServer(_refused), {}, "before the load: HTTP 429, too many."),
        (FakeServer(_whole), {}, "before the load: no event stream, the answer is application/json."),
    ],
)
def test_servers_that_cannot_be_measured(server, fields, says):
    with server.listening(), pytest.raises(InputError) as raised:
        bench(server, **fields)
    assert says in str(raised.value) and server.url in str(raised.value)


def test_an_adapter_is_a_model_only_by_name():
    models = [{"id": "base"}, {"id": "legal", "parent": "base"}]
    with FakeServer(models=models).listening() as server:
        assert bench(server)["subject"] == "base" and bench(server, model="legal")["subject"] == "legal"


def _page() -> web.Response:
    return web.Response(text="<html>hello</html>", content_type="text/html")


@pytest.mark.parametrize(
    ("listing", "says"),
    [
        (_page, "does not list its models at /v1/models; give --model NAME, or another --url."),
        (lambda: web.json_response({"data": "none"}), "does not list its models at /v1/models"),
        (lambda: web.json_response([]), "does not list its models at /v1/models"),
        (lambda: web.json_response({"detail": "Missing key."}, status=401), "refuses the API key (Missing key); give"),
        (lambda: web.Response(status=404), "does not list its models at /v1/models"),
    ],
)
def test_what_is_no_server_of_this_kind(listing, says):
    with FakeServer(listing=listing).listening() as server, pytest.raises(InputError) as raised:
        bench(server)
    assert says in str(raised.value)


def test_a_long_list_of_models_is_read_whole():
    models = [{"id": f"adapter-{n}", "parent": "base"} for n in range(20_000)]
    with FakeServer(models=[*models, {"id": "base"}]).listening() as server:
        assert bench(server)["subject"] == "base"


def test_no_request_comes_on_the_connection_of_the_list():
    """Some servers drop a connection after an error."""
    with FakeServer(listing=_page).listening() as server:
        bench(server, model="any")
    assert server.listed_with == ["close"]


def test_a_gateway_need_not_list_its_models():
    with FakeServer(listing=_page).listening() as server:
        assert bench(server, model="any")["rows"][0]["completed"] == 6
