"""What a server refuses, and what it does with clients that leave: one sentence each, in the protocol's shape."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import os
import signal
import socket
import sys

import openai
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tests.kits.cli_kit import call
from tests.kits.servers.server_kit import EXAMPLES, asked, command, data_uri, is_empty, load, serving, until
from visual_engines.images.image_processors import CLIP
from vlm.errors import ImageError, InputError
from vlm.processing.media.image_processor import ProcessorSource
from vlm.processing.media.pool import MediaConfig, MediaPool
from vlm.processing.media.reading import pixels
from vlm_app.cli.serve import _named
from vlm_app.server.core.config import ServerConfig

SIGN, SCENE = "Read the sign.", EXAMPLES / "scene1.png"
ENDLESS = {"temperature": 1.0, "max_tokens": 800, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def served():
    limits = {"api_key": "secret", "max_body_mb": 1, "max_images": 2, "max_image_pixels": 10_000_000}
    with serving(load("mini-llava", "mini-t5", "mini-nougat"), max_requests=4, **limits) as found:
        yield found


@pytest.fixture(scope="module")
def client(served):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="secret", max_retries=0) as found:
        yield found


def send(served, method: str, path: str, body: bytes | str | None = None, key: str | None = "secret", **headers):
    connection = http.client.HTTPConnection(served.address)
    given = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {}), **headers}
    connection.request(method, path, body, given)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def metric(served, name: str, **labels) -> float:
    text = send(served, "GET", "/metrics")[1]
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples if s.name == name]
    return sum(s.value for s in samples if labels.items() <= s.labels.items())


def refusal(client, kind=openai.BadRequestError, **options) -> str:
    """The sentence of a chat that is refused."""
    with pytest.raises(kind) as caught:
        client.chat.completions.create(**{"model": "mini-llava", **options})
    message = caught.value.body["message"]
    assert message.endswith(".") and "\n" not in message and "Traceback" not in message
    return message


def test_a_key_is_asked_for_everywhere_but_at_the_door(served):
    for scheme, status in (("bearer", 200), ("BEARER", 200), ("Basic", 401)):
        assert send(served, "GET", "/v1/models", key=None, Authorization=f"{scheme} secret")[0] == status
    for key in (None, "wrong", "secret2"):
        status, text = send(served, "GET", "/v1/models", key=key)
        assert status == 401 and "API key" in json.loads(text)["error"]["message"]
        assert send(served, "GET", "/metrics", key=key)[0] == 401
        assert send(served, "GET", "/health", key=key)[0] == 200
    assert send(served, "GET", "/v1/models")[0] == 200


def test_bodies_over_the_limit_are_refused_announced_or_not(served):
    large = b"x" * (2**20 + 1)
    status, text = send(served, "POST", "/v1/chat/completions", large)
    assert status == 413 and "over 1,048,576 bytes; send fewer or smaller texts, images or tensors" in text
    chunks = iter([large[: 2**19]] * 3)
    status, text = send(served, "POST", "/v1/chat/completions", chunks)
    assert status == 413 and json.loads(text)["error"]["type"] == "invalid_request_error"


def test_nothing_is_fetched(client):
    part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}
    for url in ("http://127.0.0.1:1/a.png", "file:///etc/passwd", "a.png", "iVBORw0KGgo="):
        part["image_url"]["url"] = url
        says = "not fetched" if ":" in url else "is no data URI; put data:image/png;base64,"
        assert says in refusal(client, messages=[{"role": "user", "content": [part]}])


def test_images_have_limits(client):
    assert "2 images and pages" in refusal(client, messages=asked(SIGN, SCENE, SCENE, SCENE))
    file = io.BytesIO()
    Image.new("1", (4000, 4000)).save(file, "PNG")
    uri = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": uri}}]}]
    assert "4000×4000" in refusal(client, messages=messages)
    for url, why in (
        ("data:image/png;base64,####", "base64"),
        ("data:image/png;base64,aGVsbG8=", "no image"),
        ("data:image/png,abc", "base64 data URI"),
    ):
        messages[0]["content"][0]["image_url"]["url"] = url
        assert why in refusal(client, messages=messages)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 0, "n": 2}, "n is 2: give at least as many num_beams"),
        ({"n": 0}, "n"),
        ({"top_logprobs": 3}, "needs logprobs"),
        ({"max_tokens": 10**9}, "1024"),
        ({"tools": [{"type": "function", "function": {"name": "a"}}]}, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"stop": [""]}, "stop"),
        ({"extra_body": {"tempperature": 1}}, "tempperature"),
        ({"extra_body": {"stop_token_ids": [10**6], "min_tokens": 3}}, "outside the vocabulary"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "role"),
        ({"messages": [{"role": "user", "content": "<image>"}]}, "1 <image> placeholder and 0 images were given"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "allowed are text"),
        ({"model": "mini-t5", "messages": asked("a", SCENE)}, "takes text, not images"),
        ({"model": "mini-nougat", "messages": asked("What is it?", SCENE)}, "no question"),
        ({"model": "mini-nougat", "messages": asked("", SCENE, SCENE)}, "one image"),
    ],
)
def test_mistakes_get_one_sentence(client, options, words):
    assert words in refusal(client, **{"messages": asked(SIGN), **options})
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(**{"model": "mini-llava", "messages": asked(SIGN), "stream": True, **options})


def test_unknown_models_and_paths_are_404(client, served):
    assert "mini-llava, mini-t5" in refusal(client, openai.NotFoundError, model="gpt-4", messages=asked("a"))
    status, text = send(served, "GET", "/v1/nothing")
    assert status == 404 and json.loads(text)["error"]["message"].startswith("/v1/nothing is not served")
    assert send(served, "GET", "/v1/chat/completions")[0] == 405
    for body in (
        "{",
        "[]",
        '"a"',
        "[" * 5000,
        b"\xff\xfe",
        '{"model": "\ud800", "messages": [{}]}'.encode("utf-8", "surrogatepass"),
    ):
        status, text = send(served, "POST", "/v1/chat/completions", body)
        assert status in (400, 404) and json.loads(text)["error"]["message"].endswith(".")


def test_a_full_server_sheds_load(client, served):
    before = metric(served, "vlm_rejected_requests_total", model="mini-llava")
    aborted = metric(served, "vlm_outputs_total", model="mini-llava", reason="abort")
    service = served.service("mini-llava")
    with service.room.acquire([3])[0]:
        assert client.chat.completions.create(model="mini-llava", messages=asked(SIGN, SCENE)).choices
        assert "4 at most" in refusal(client, openai.RateLimitError, messages=asked(SIGN, SCENE), n=2)
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="mini-llava", messages=asked(SIGN, SCENE), n=2, stream=True)
        assert caught.value.response.headers["retry-after"] == "1"
    assert "holds 4 at most" in refusal(client, messages=asked(SIGN, SCENE), n=5)
    for number in (3, 5):  # inputs of a request count together, before any of them is begun
        refused = pytest.raises(openai.RateLimitError if number < 4 else openai.BadRequestError, match="4 at most")
        with service.room.acquire([2])[0], refused:
            client.completions.create(model="mini-llava", prompt=[SIGN] * number)
    assert metric(served, "vlm_rejected_requests_total", model="mini-llava") == before + 3
    assert metric(served, "vlm_outputs_total", model="mini-llava", reason="abort") == aborted


def test_inputs_of_embeddings_are_encoded_so_many_at_once_as_there_is_room_for(client):
    assert len(client.embeddings.create(model="mini-t5", input=["a ship"] * 5).data) == 5


CHAT = {"model": "mini-llava", "messages": asked(SIGN, SCENE), "max_tokens": 800, "ignore_eos": True}
TENSORS = [("max_output_len", "UINT32", 800), ("end_id", "UINT32", 440), ("text_input", "BYTES", SIGN)]  # 440: never
INFER = {"inputs": [{"name": n, "datatype": kind, "shape": [1, 1], "data": [x]} for n, kind, x in TENSORS]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {**CHAT, "stream": True}),
        ("/v1/chat/completions", CHAT),
        ("/v2/models/mini-llava/infer", INFER),
    ],
    ids=["stream", "whole", "tensors"],
)
def test_a_client_that_leaves_is_not_worked_for(served, path, body):
    service = served.service("mini-llava")
    before = metric(served, "vlm_outputs_total", reason="abort")
    connection = http.client.HTTPConnection(served.address)
    headers = {"Authorization": "Bearer secret", "Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body), headers)
    until(lambda: service.pipeline.llm.scheduler.running)
    connection.sock.close()
    connection.close()
    until(lambda: service.room.held == 0 and is_empty(service.pipeline))
    assert metric(served, "vlm_outputs_total", reason="abort") == before + 1


def test_metrics_count_what_was_done(client, served):
    names = ("vlm_generated_tokens_total", "vlm_prompt_tokens_total", "vlm_time_to_first_token_seconds_count")
    before = {name: metric(served, name, model="mini-t5") for name in names}
    text = "translate English to German: The old ship is small."
    answer = client.chat.completions.create(model="mini-t5", messages=[{"role": "user", "content": text}])
    after = {name: metric(served, name, model="mini-t5") - before[name] for name in names}
    assert list(after.values()) == [answer.usage.completion_tokens, answer.usage.prompt_tokens, 1]
    for name in ("vlm_kv_cache_used_ratio", "vlm_running_outputs", "vlm_waiting_outputs"):
        assert metric(served, name, model="mini-t5") == 0
    exposed = send(served, "GET", "/metrics")[1]
    assert all(name in exposed for name in ("vlm_inter_token_seconds", "vlm_preemptions", "vlm_loop_stops"))


def test_an_output_that_repeats_itself_is_stopped_and_counted(client, served):
    options = {"messages": asked("", EXAMPLES / "page.png"), "extra_body": {"repetition_penalty": 0.05}}
    [choice] = client.chat.completions.create(model="mini-nougat", **options).choices
    assert (choice.finish_reason, choice.stop_reason) == ("length", "loop")
    assert metric(served, "vlm_loop_stops_total", model="mini-nougat") == 1


def test_a_pdf_stands_for_its_pages(client):
    uri = data_uri(EXAMPLES / "pages.pdf", "application/pdf")
    parts = [{"type": "file", "file": {"file_data": uri, "filename": "pages.pdf"}}]
    reason = refusal(client, model="mini-nougat", messages=[{"role": "user", "content": parts}])
    assert "images and pages" in reason or "one image" in reason


def test_a_tiff_stands_for_its_frames(client, tmp_path):
    scene = Image.new("L", (200, 160), "white")
    for frames, refused in ((1, False), (2, True)):
        scene.save(tmp_path / "fax.tif", save_all=True, append_images=[scene] * (frames - 1))
        parts = [{"type": "image_url", "image_url": {"url": data_uri(tmp_path / "fax.tif", "image/tiff")}}]
        asks = {"model": "mini-nougat", "messages": [{"role": "user", "content": parts}]}
        if refused:
            assert "one image" in refusal(client, **asks)
        else:
            assert client.chat.completions.create(max_tokens=4, **asks).choices


def test_settings_are_checked():
    front = ({"header_seconds": 0}, {"idle_seconds": float("nan")}, {"max_connections": 0})
    names = ({"allowed_hosts": ("http://a",)}, {"allowed_origins": ("a.example",)}, {"allowed_origins": ("http://a/",)})
    counts = ({"max_requests": 0}, {"port": 70000}, {"preprocess_workers": -1}, {"preprocess_workers": 2000})
    paths = ({"root_path": "llm"}, {"root_path": "/llm/"}, {"root_path": "/a b"}, {"root_path": "/v1/llm"})
    for wrong in ({"api_key": ""}, {"host": ""}, {"host": " "}, {"drain_seconds": -1}, *counts, *front, *names, *paths):
        with pytest.raises(InputError):
            ServerConfig(**wrong)
    assert _named("a=b/c") == ("a", "b/c") and _named("x/y/") == ("y", "x/y/")


@pytest.mark.slow
def test_sigterm_lets_what_runs_end():
    """The command itself."""
    with command("mini-llava", "--preprocess-workers", "0", "--drain-seconds", "1800") as (process, address):
        client = openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)
        options = {"model": "mini-llava", "messages": asked(SIGN, SCENE), "stream": True, "logprobs": True}
        stream = iter(client.chat.completions.create(**options, **ENDLESS))
        next(stream)
        os.kill(process.pid, signal.SIGTERM)
        tokens = sum(len(c.choices[0].logprobs.content) for c in stream if c.choices[0].logprobs)
        assert tokens > 700  # of 800: some came before
        assert process.wait() == 0


def test_the_command_says_what_is_wrong(monkeypatch):
    def refused(*arguments: str) -> str:
        result = call("serve", *arguments)
        [line] = [line for line in result.stderr.splitlines() if line.startswith("vlm: ")]
        assert result.exit_code == 2 and line.endswith(".")
        return line

    assert "two models are called mini-t5" in refused("mini-t5", "a/mini-t5")
    assert "names no model" in refused("=mini-t5")
    assert "port is 99999" in refused("mini-t5", "--port", "99999")
    assert "no-such-model" in refused("no-such-model")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert "give another --host or --port" in refused("mini-t5", "--device", "cpu", "--port", port)
    assert "cannot be listened at" in refused("mini-t5", "--device", "cpu", "--host", "no.such.host.invalid")
    for module in [name for name in sys.modules if name in ("vlm_app.server.run", "vlm_app.server.http.http_server")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'vlm-runtime[serve]'" in refused("mini-t5")


@pytest.mark.slow
def test_an_image_that_kills_its_process_costs_one_request():
    """Decoding is done elsewhere: what breaks there is one refusal, and the next image is read."""

    async def ask():
        media = MediaPool(MediaConfig(1))
        source = ProcessorSource(None, (CLIP,), (32, 32))
        try:
            [[whole]] = await pixels(media, [SCENE.read_bytes()], source)
            with pytest.raises(ImageError, match="broke the process"):
                await media.run("the images", os.abort)
            [[again]] = await pixels(media, [SCENE.read_bytes()], source)
            return whole, again
        finally:
            media.close()

    whole, again = asyncio.run(ask())
    assert whole.pixels.shape == (3, 32, 32) and (whole.pixels == again.pixels).all()
