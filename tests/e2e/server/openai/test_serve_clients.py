"""Unchanged clients of OpenAI's protocol, each as its users install it: in an environment of its own, from PyPI."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import openai
import pytest

from tests.checkout import ROOT
from tests.kits.servers import server_kit
from tests.kits.servers.server_kit import EXAMPLES, is_empty, load, serving, until

pytestmark = pytest.mark.slow
SCENE, PAGE = EXAMPLES / "scene1.png", EXAMPLES / "page.png"
TEXT = "translate English to German: The old ship is small."
GERMAN = "Das alte Schiff ist klein."
CLIENTS = ROOT / "tests" / "clients"
MODELS = ("mini-llava", "mini-t5", "mini-nougat")


@pytest.fixture(scope="module")
def served():
    with serving(load(*MODELS), api_key="SECRET", max_requests=64) as found:
        yield found
        assert all(is_empty(found.service(name).pipeline) for name in MODELS)


@pytest.fixture(scope="module")
def clients():
    """A Python with langchain-openai and litellm; litellm needs an older huggingface_hub than others may have here."""
    with tempfile.TemporaryDirectory() as folder:
        # an old pip takes minutes over what these depend on
        subprocess.run([sys.executable, "-m", "venv", "--upgrade-deps", folder], check=True)
        python = Path(folder) / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "-q", "langchain-openai", "litellm"], check=True)
        yield python


@pytest.fixture(scope="module")
def expected():
    """What the models say by themselves."""
    llava, t5 = server_kit.alone("mini-llava"), server_kit.alone("mini-t5")
    assert t5.generate(text=TEXT).text == GERMAN
    return {
        "sign": llava.generate(images=[SCENE], prompt="Read the sign.").text,
        "page": server_kit.alone("mini-nougat").generate(PAGE).text,
        "short": t5.generate(text=TEXT, max_new_tokens=3, logit_bias={5: -1}).text,
        "width": t5.encode(TEXT).last_hidden_state.shape[1],
    }


def printed(python: Path | str, script: str, served) -> dict:
    """The JSON object that a client's script prints."""
    arguments = [python, CLIENTS / script, f"{served.url}/v1", SCENE, PAGE, TEXT]
    # its list of prices is on the network
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("own", [True, False], ids=["as tests have it", "as langchain-openai and litellm have it"])
def test_openai(served, expected, own, request):
    python = sys.executable if own else request.getfixturevalue("clients")
    found = printed(python, "openai_client.py", served)
    assert found["image"] == expected["sign"] and found["stream helper"] == [expected["sign"]] * 2
    assert found["async"] == [GERMAN] * 5 and found["raw"] == [200, 32, GERMAN]
    assert (found["file"], found["embedding"]) == (expected["page"], expected["width"])
    assert found["models"] == list(MODELS)
    for scheme in ("bearer", "BEARER"):
        assert found[scheme] == ["no error", "mini-llava"]
    assert found["wrong"][:3] == ["AuthenticationError", 401, "invalid_api_key"]
    assert found["parse"][:4] == ["BadRequestError", 400, None, "response_format"]
    for name, path in (("responses", "responses"), ("speech", "audio/speech"), ("images", "images/generations"),
                       ("moderation", "moderations"), ("files", "files"), ("uploads", "files"),
                       ("transcriptions", "audio/transcriptions")):  # fmt: skip
        assert found[name][:2] == ["NotFoundError", 404]
        assert found[name][4].startswith(f"/v1/{path} is not served here; there are /v1/chat/completions")
    assert found["no model"][:4] == ["NotFoundError", 404, "model_not_found", "model"]
    assert found["too hot"][:4] == ["BadRequestError", 400, None, "temperature"]


def test_langchain_openai(served, expected, clients):
    found = printed(clients, "langchain_client.py", served)
    assert found["image"] == found["block"] == found["stream"]["text"] == "".join(found["logprobs"]) == expected["sign"]
    assert found["usage"]["output_tokens"] == found["stream"]["usage"]["output_tokens"] > 0
    assert found["stream"]["finish"] == found["metadata"]["finish_reason"] == "stop"
    assert found["metadata"]["system_fingerprint"].startswith("vlm-") and found["conversation"]
    assert found["invoke"] == found["chain"] == found["completion"] == found["streamed completion"] == GERMAN
    assert (found["async"], found["batch"], found["completions"]) == ([GERMAN] * 4, [GERMAN] * 3, [GERMAN] * 2)
    assert (found["stop"], found["options"], found["page"]) == ("Das alte ", expected["short"], expected["page"])
    assert found["embeddings"] == [expected["width"]] * 100 and found["dimensions"] == 5
    assert "tools is not supported" in found["tools"][1]
    assert "response_format is not supported" in found["structure"][1]
    assert [found[name][0].removeprefix("OpenAI") for name in ("too long", "key", "model")] == [
        "ContextOverflowError", "AuthenticationError", "ModelNotFoundError",
    ]  # fmt: skip


def test_litellm(served, expected, clients):
    found = printed(clients, "litellm_client.py", served)
    assert found["image"] == found["stream"] == found["rebuilt"] == expected["sign"] and found["finish"] == "stop"
    assert found["stream usage"] == found["usage"][1:]
    assert found["text"] == found["hosted vllm"] == found["completion"] == GERMAN and found["async"] == [GERMAN] * 2
    assert (found["options"], found["page"]) == (expected["short"], expected["page"]) and found["dropped"]
    assert (found["embeddings"], found["dimensions"]) == ([expected["width"]] * 2, 5)
    kinds = {name: found[name][0] for name in ("too long", "key", "model", "bad")}
    assert kinds == {"too long": "ContextWindowExceededError", "key": "AuthenticationError", "model": "NotFoundError",
                     "bad": "BadRequestError"}  # fmt: skip


# --- clients that wait, give up, go away ---
LONG = {"model": "mini-t5", "messages": [{"role": "user", "content": TEXT}], "temperature": 1, "max_tokens": 400,
        "extra_body": {"ignore_eos": True}}  # fmt: skip


def test_a_client_asks_again_after_429(served):
    service = served.service("mini-t5")
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="SECRET", max_retries=0) as impatient:
        before, service.room.held = service.room.held, 64
        with pytest.raises(openai.RateLimitError) as caught:
            impatient.embeddings.create(model="mini-t5", input=TEXT)
        assert caught.value.code == "rate_limit_exceeded" and caught.value.response.headers["retry-after"] == "1"
        threading.Timer(0.5, lambda: setattr(service.room, "held", before)).start()
        answer = impatient.with_options(max_retries=5).chat.completions.create(**{**LONG, "extra_body": None})
        assert answer.choices[0].message.content


def test_a_client_that_gives_up_leaves_nothing_running(served):
    service = served.service("mini-t5")
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="SECRET", max_retries=0, timeout=0.2) as hasty:
        with pytest.raises(openai.APITimeoutError):
            hasty.chat.completions.create(**LONG)
        until(lambda: service.room.held == 0 and is_empty(service.pipeline))


def test_a_task_that_is_cancelled_leaves_nothing_running(served):
    async def cancelled() -> None:
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="SECRET", max_retries=0) as client:
            task = asyncio.ensure_future(client.chat.completions.create(**LONG))
            while not served.service("mini-t5").room.held:
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cancelled())
    until(lambda: served.service("mini-t5").room.held == 0 and is_empty(served.service("mini-t5").pipeline))
