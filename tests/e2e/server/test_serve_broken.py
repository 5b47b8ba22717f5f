"""An engine that is beyond recovery: the server ends for a supervisor to start it again, or stays and says so."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.kits.servers.server_kit import load, serving, until
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.run import run


@pytest.fixture
def pipelines(monkeypatch):
    def broken(**options):
        raise RuntimeError("device lost")

    found = load("mini-t5")
    monkeypatch.setattr(found["mini-t5"].llm, "step", broken)
    return found


def asked(address: str) -> None:
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
        client.completions.create(model="mini-t5", prompt="summarize: The old ship is small.")


def test_the_server_ends_with_its_engine(pipelines):
    addresses: list[str] = []
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(run, pipelines, ServerConfig(port=0, preprocess_workers=0), addresses.append)
        until(lambda: addresses)
        asked(addresses[0])
        assert ended.result(60) == "the engine of mini-t5 has broken: device lost"


def test_an_engine_that_hangs_has_broken(monkeypatch):
    """Though the event loop goes on to answer. That the process ends is what lets the thread go."""
    pipelines, released, addresses = load("mini-t5"), threading.Event(), list[str]()
    monkeypatch.setattr(pipelines["mini-t5"].llm, "step", lambda **options: released.wait() and [])
    config = ServerConfig(port=0, preprocess_workers=0, step_seconds=0.5)
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(run, pipelines, config, addresses.append)
        until(lambda: addresses)
        asked(addresses[0])
        assert "the engine of mini-t5 has broken: a step has taken longer than 0.5 s" in ended.result(60)
        released.set()


def test_it_stays_and_says_so(pipelines):
    with serving(pipelines, exit_when_broken=False) as served:
        asked(served.url)
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(f"{served.url}/health")
        assert caught.value.code == 503 and json.load(caught.value)["broken"] == ["mini-t5"]
        with urllib.request.urlopen(f"{served.url}/v2/repository/index", b"") as answer:
            [row] = json.load(answer)
        assert (row["state"], row["reason"]) == ("UNAVAILABLE", "the engine has broken")
