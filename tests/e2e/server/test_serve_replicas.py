"""`vlm serve --replicas`: clients meet one server, whatever becomes of the processes behind it."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import openai
import pytest
import tritonclient.grpc as triton_grpc
from prometheus_client.parser import text_string_to_metric_families

from tests.kits.cli_kit import call
from tests.kits.media_kit import Child, children
from tests.kits.servers.server_kit import EXAMPLES, alone, asked, command, free_port, until

pytestmark = pytest.mark.slow

TEXT = "translate English to German: The old ship is small."
QUESTIONS = ("Read the sign.", "How many objects are there?", "Which shape is pink?")
SCENES = [EXAMPLES / f"scene{i}.png" for i in (1, 2, 3)]
LONG = {"max_tokens": 120, "extra_body": {"ignore_eos": True}}
RETRIED = "vlm_retried_requests_total"
LOST = "the replica that worked on the request has ended; send it again."


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def served(grpc_port) -> Iterator[str]:
    options = ("--replicas", "2", "--preprocess-workers", "2", "--grpc-port", str(grpc_port))
    with command("mini-t5", "mini-llava", *options) as (_, address):
        yield f"http://{address}"


@pytest.fixture(scope="module")
def triton(served, grpc_port):
    """Triton's own client of the same server."""
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{grpc_port}") as found:
        yield found


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served}/v1", api_key="none", max_retries=0) as found:
        yield found


def get(url: str, body: bytes | None = None):
    headers = {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return answer.read().decode()


def replicas(url: str) -> list[dict]:
    try:
        return json.loads(get(f"{url}/health"))["replicas"]
    except urllib.error.HTTPError as error:
        return json.load(error)["replicas"]


def chat(text: str, *images) -> dict:
    return {"messages": asked(text, *images)}


# --- while all is well ---
def test_a_client_sees_one_server(served, client):
    whole = client.chat.completions.create(model="mini-t5", **chat(TEXT))
    assert whole.choices[0].message.content == alone("mini-t5").generate(text=TEXT).text
    stream = client.chat.completions.create(model="mini-t5", **chat(TEXT), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content
    assert [model.id for model in client.models.list()] == ["mini-t5", "mini-llava"]
    assert len(client.embeddings.create(model="mini-t5", input=["a", "b"]).data) == 2
    body = {"text_input": TEXT, "parameters": {"max_tokens": 40}}
    answer = json.loads(get(f"{served}/v2/models/mini-t5/generate", json.dumps(body).encode()))
    assert answer["text_output"] == whole.choices[0].message.content
    with pytest.raises(openai.NotFoundError, match="'gone' is not served here"):
        client.chat.completions.create(model="gone", **chat(TEXT))
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(model="mini-t5", **chat(TEXT), tools=[{"type": "function"}])


def test_questions_about_an_image_go_where_it_was_encoded(served, client):
    def outputs() -> Counter[str]:
        families = text_string_to_metric_families(get(f"{served}/metrics"))
        samples = [sample for family in families for sample in family.samples if sample.name == "vlm_outputs_total"]
        own = [sample for sample in samples if sample.labels["model"] == "mini-llava"]
        return sum((Counter({sample.labels["replica"]: sample.value}) for sample in own), Counter())

    before = outputs()
    for question in QUESTIONS * 2:
        client.chat.completions.create(model="mini-llava", **chat(question, SCENES[0]), max_tokens=4)
    assert [*(outputs() - before).values()] == [6]


def test_health_names_the_replicas(served):
    found = json.loads(get(f"{served}/health"))
    assert (found["status"], found["broken"]) == ("ok", [])
    assert [row["replica"] for row in found["replicas"]] == ["0", "1"]
    assert {row["health"]["status"] for row in found["replicas"]} == {"ok"}
    assert json.loads(get(f"{served}/v2/health/ready"))["ready"]


def test_statistics_and_the_index_are_those_of_one_server(served, client):
    def succeeded() -> int:
        [row] = json.loads(get(f"{served}/v2/models/mini-t5/stats"))["model_stats"]
        return row["inference_stats"]["success"]["count"]

    before = succeeded()
    for _ in range(4):  # that go round
        client.chat.completions.create(model="mini-t5", **chat(TEXT), max_tokens=2)
    assert succeeded() - before == 4
    index = json.loads(get(f"{served}/v2/repository/index", b"{}"))
    assert [(row["name"], row["state"]) for row in index] == [("mini-t5", "READY"), ("mini-llava", "READY")]


# --- over gRPC ---
def infer(triton) -> str:
    text = triton_grpc.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[TEXT.encode()]], object))
    return triton.infer("mini-t5", [text]).as_numpy("text_output").item().decode()


def test_grpc_is_spoken_as_by_one_server(served, triton):
    def succeeded() -> int:
        statistics = triton.get_inference_statistics("mini-t5", as_json=True)
        return int(statistics["model_stats"][0]["inference_stats"]["success"]["count"])

    assert triton.is_server_live() and triton.is_server_ready() and triton.is_model_ready("mini-t5")
    before = succeeded()
    assert [infer(triton) for _ in range(4)] == [alone("mini-t5").generate(text=TEXT).text] * 4
    assert succeeded() - before == 4
    models = triton.get_model_repository_index(as_json=True)["models"]
    assert [(row["name"], row["state"]) for row in models] == [("mini-t5", "READY"), ("mini-llava", "READY")]
    with pytest.raises(triton_grpc.InferenceServerException, match="'gone' is not served here") as caught:
        triton.infer("gone", [])
    assert "NOT_FOUND" in caught.value.status()
    with pytest.raises(triton_grpc.InferenceServerException, match="--model-control") as caught:
        triton.unload_model("mini-t5")
    assert "PERMISSION_DENIED" in caught.value.status()


# --- while a replica is killed ---
def load_of(count: int) -> list[tuple[str, dict]]:
    """Requests of both models, and what is alone to them."""
    texts = [("mini-t5", chat(f"translate English to German: {number} May 2019")) for number in range(count // 2)]
    pairs = [(question, scene) for question in QUESTIONS for scene in SCENES]
    scenes = [("mini-llava", chat(*pairs[number % 9]) | LONG) for number in range(count - count // 2)]
    return [each for pair in zip(texts, scenes, strict=True) for each in pair]


def expected(model: str, number: int) -> str:
    return _date(number) if model == "mini-t5" else _answer(number % 9)


@functools.cache
def _date(number: int) -> str:
    return alone("mini-t5").generate(text=f"translate English to German: {number} May 2019").text


@functools.cache
def _answer(number: int) -> str:
    question, scene = [(question, scene) for question in QUESTIONS for scene in SCENES][number]
    return alone("mini-llava").generate(images=[scene], prompt=question, max_new_tokens=120, ignore_eos=True).raw_text


async def told(
    client: openai.AsyncOpenAI, model: str, ask: dict, streams: bool, begun: asyncio.Event
) -> tuple[str, int]:
    """A stream's text, and how often it was broken off with the sentence and asked for again."""
    broken = 0
    while True:
        try:
            if not streams:
                answer = await client.chat.completions.create(model=model, **ask)
                return answer.choices[0].message.content, broken
            text = ""
            async for chunk in await client.chat.completions.create(model=model, **ask, stream=True):
                text += chunk.choices[0].delta.content or ""
                begun.set()
            return text, broken
        except openai.APIError as error:
            assert streams and begun.is_set() and LOST in str(error)
            broken += 1


def check_kill(url: str, triton, count: int) -> None:
    """Asks so much at once, and a little over gRPC, kills a replica once streams have begun, and compares every answer
    with the model's own."""

    async def run() -> list[tuple[str, int]]:
        begun = asyncio.Event()
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            asks = [told(client, model, ask, i % 4 > 1, begun) for i, (model, ask) in enumerate(load_of(count))]
            answers = asyncio.gather(*asks)
            others = asyncio.gather(*(asyncio.to_thread(infer, triton) for _ in range(4)))
            await begun.wait()
            busiest = max(await asyncio.to_thread(replicas, url), key=lambda row: row["outstanding"])
            assert busiest["outstanding"] > 0
            os.kill(busiest["pid"], signal.SIGKILL)
            assert {*await others, await asyncio.to_thread(infer, triton)} == {own}
            return await answers

    def retried() -> float:
        return sum(float(line.split()[1]) for line in get(f"{url}/metrics").splitlines() if line.startswith(RETRIED))

    own = alone("mini-t5").generate(text=TEXT).text
    before, retried_before = {row["replica"]: row["restarts"] for row in replicas(url)}, retried()
    found = asyncio.run(run())
    assert [text for text, _ in found] == [
        expected(model, number // 2) for number, (model, _) in enumerate(load_of(count))
    ]
    assert retried() - retried_before + sum(broken for _, broken in found) > 0
    until(lambda: all(row["ready"] for row in replicas(url)))
    assert sum(row["restarts"] - before[row["replica"]] for row in replicas(url)) == 1
    assert {row["outstanding"] for row in replicas(url)} == {0}


@pytest.mark.parametrize("count", [16, 120])
def test_nothing_is_lost_or_mixed_when_a_replica_is_killed(served, triton, count):
    check_kill(served, triton, count)
    assert len({infer(triton) for _ in range(4)}) == 1  # of both, one of them a new process


def test_the_last_replica_that_is_gone_is_said(served, client):
    for row in replicas(served):
        os.kill(row["pid"], signal.SIGKILL)
    until(lambda: not any(row["ready"] for row in replicas(served)))
    with pytest.raises(openai.InternalServerError, match=r"no replica is ready; ask again later\.|has ended; send it"):
        client.chat.completions.create(model="mini-t5", **chat(TEXT))
    with pytest.raises(urllib.error.HTTPError, match="503"):
        get(f"{served}/v2/health/ready")
    until(lambda: all(row["ready"] for row in replicas(served)))
    assert client.chat.completions.create(model="mini-t5", **chat(TEXT)).choices[0].finish_reason == "stop"


def test_a_replica_that_hangs_is_started_again_and_nothing_is_lost():
    with command("mini-t5", "--replicas", "2", "--unresponsive-seconds", "3") as (_, address):
        url, body = f"http://{address}", json.dumps({"model": "mini-t5"} | chat(TEXT)).encode()
        stopped = replicas(url)[0]
        os.kill(stopped["pid"], signal.SIGSTOP)
        with ThreadPoolExecutor(4) as pool:
            answers = [*pool.map(lambda _: json.loads(get(f"{url}/v1/chat/completions", body)), range(4))]
        own = alone("mini-t5").generate(text=TEXT).text
        assert [answer["choices"][0]["message"]["content"] for answer in answers] == [own] * 4
        until(lambda: replicas(url)[0]["ready"])
        row = replicas(url)[0]
        assert row["restarts"] == 1 and row["pid"] != stopped["pid"]


def command_line(child: Child) -> bytes:
    return Path(f"/proc/{child.pid}/cmdline").read_bytes()


def test_a_rank_that_hangs_ends_its_replica_and_no_other(tmp_path):
    """Its first rank answers for its health all the while."""
    assert call("build", "mini-t5", "-o", tmp_path / "two", "--tp-size", "2").exit_code == 0
    with command(str(tmp_path / "two"), "--replicas", "2", "--step-seconds", "3") as (_, address):
        url, body = f"http://{address}", json.dumps({"model": "two"} | chat(TEXT)).encode()
        first = replicas(url)[0]
        [follower] = [child for child in children(first["pid"]) if b"rank_processes" in command_line(child)]
        os.kill(follower.pid, signal.SIGSTOP)
        own = alone("mini-t5").generate(text=TEXT).text
        for _ in range(4):  # of which the first replica gets two, unless it has ended before
            answer = json.loads(get(f"{url}/v1/chat/completions", body))
            assert answer["choices"][0]["message"]["content"] == own
        until(lambda: [(row["ready"], row["restarts"]) for row in replicas(url)] == [(True, 1), (True, 0)])
        os.kill(follower.pid, signal.SIGCONT)  # stopped, it does not see that the first rank has gone
        until(lambda: not follower.is_alive())


# --- the end ---
def processes(process: subprocess.Popen, url: str) -> list[Child]:
    """All that a server has started, once its replicas have processes that decode images."""
    for _ in range(2):
        body = {"model": "mini-llava", "max_tokens": 4} | chat(QUESTIONS[0], SCENES[0])
        get(f"{url}/v1/chat/completions", json.dumps(body).encode())
    found = children(process.pid)
    assert len(found) >= 4  # two replicas, and processes that read
    return found


def test_no_process_outlives_the_front():
    with command("mini-llava", "--replicas", "2", ends_with=-signal.SIGKILL) as (process, address):
        others = processes(process, f"http://{address}")
        process.kill()
        process.wait()
        until(lambda: not any(other.is_alive() for other in others))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_what_runs_may_end(number, code):
    with (
        command("mini-llava", "--replicas", "2", ends_with=code) as (process, address),
        openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0) as client,
    ):
        others = processes(process, f"http://{address}")
        options = {"model": "mini-llava", "stream": True, "logprobs": True, **chat(QUESTIONS[0], SCENES[0])}
        stream = iter(client.chat.completions.create(**options, max_tokens=800, extra_body={"ignore_eos": True}))
        next(stream)
        process.send_signal(number)
        tokens = sum(len(chunk.choices[0].logprobs.content) for chunk in stream if chunk.choices[0].logprobs)
        assert tokens > 700  # of 800: some came before
        assert process.wait() == code
        until(lambda: not any(other.is_alive() for other in others))


def test_a_replica_that_comes_back_serves_what_the_others_do(tmp_path):
    assert call("build", "mini-t5", "-o", tmp_path / "one" / "1").exit_code == 0
    options = ("--model-repository", str(tmp_path), "--model-control", "--replicas", "2")
    with command("mini-llava", *options) as (_, address):
        url = f"http://{address}"
        assert get(f"{url}/v2/repository/models/one/unload", b"{}") == ""
        os.kill(replicas(url)[0]["pid"], signal.SIGKILL)
        until(lambda: [(row["ready"], row["restarts"]) for row in replicas(url)] == [(True, 1), (True, 0)])
        for _ in range(4):
            assert [row["id"] for row in json.loads(get(f"{url}/v1/models"))["data"]] == ["mini-llava"]
        assert get(f"{url}/v2/repository/models/one/load", b"{}") == ""
        for _ in range(4):
            assert len(json.loads(get(f"{url}/v1/models"))["data"]) == 2


def test_a_replica_may_have_ranks(tmp_path):
    assert call("build", "mini-t5", "-o", tmp_path / "two", "--tp-size", "2").exit_code == 0
    with command(str(tmp_path / "two"), "--replicas", "2") as (process, address):
        ranks = children(process.pid)
        assert len(ranks) >= 4
        body = {"model": "two"} | chat(TEXT)
        for _ in range(2):
            answer = json.loads(get(f"http://{address}/v1/chat/completions", json.dumps(body).encode()))
            assert answer["choices"][0]["message"]["content"] == alone("mini-t5").generate(text=TEXT).text
    until(lambda: not any(rank.is_alive() for rank in ranks))


def test_the_command_says_what_is_wrong(tmp_path):
    def refused(*arguments: str) -> str:
        result = call("serve", "mini-t5", *arguments)
        [line] = [line for line in result.stderr.splitlines() if line.startswith("vlm: ")]
        assert result.exit_code == 2
        return line

    assert refused("--replicas", "0") == "vlm: --replicas is 0; it must be at least 1."
    assert "--replicas is 3, and --devices has room for 2" in refused("--replicas", "3", "--devices", "cpu,cpu")
    assert "--device and --devices are both given" in refused("--device", "cpu", "--devices", "cpu,cpu")
    assert "--grpc-port is for one machine" in refused("--ray", "--grpc-port", "0")
    assert "--model-control changes one replica" in refused("--ray", "--model-control")
    assert "--devices is for one machine" in refused("--ray", "--devices", "cpu")
    assert "--devices names 'tpu'; allowed are auto, cpu, cuda and cuda:N" in refused("--devices", "tpu")
    assert "device cuda:99 is not there" in refused("--devices", "cuda:99")
    assert "no-such-model" in call("serve", "no-such-model", "--device", "cpu", "--replicas", "2").stderr


@pytest.mark.parametrize(("count", "words"), [(1, "by 1 replica (cpu)"), (2, "by 2 replicas (cpu; cpu)")])
def test_the_command_says_how_many_serve(monkeypatch, count, words):
    def announced(_built, _places, _config, announce, *_rest, **_more):
        announce("http://here")

    monkeypatch.setattr("vlm_app.server.replicas.run.run_replicas", announced)
    result = call("serve", "mini-t5", "--device", "cpu", "--replicas", str(count))
    assert f"vlm: serving mini-t5 {words} at http://here" in result.stderr
