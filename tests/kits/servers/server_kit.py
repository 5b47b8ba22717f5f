"""A server of packaged models on a free port, in a thread of the test's own process."""

from __future__ import annotations

import base64
import contextlib
import functools
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.types import ASGIApp

import vlm
from tests.checkout import ROOT
from vlm.api.pipeline import Pipeline
from vlm.engine.llm_engine import LLMEngine
from vlm_app.server.app import create_app
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.http.http_server import Server
from vlm_app.server.repository.control import Repositories
from vlm_app.server.repository.service import Service

EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Served:
    """Where it listens, and what is behind it."""

    address: str  # host:port
    app: FastAPI
    front: Starlette | None = None  # before it

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def grpc_address(self) -> str:
        return f"127.0.0.1:{(self.front or self.app).state.grpc.port}"

    def service(self, name: str) -> Service:
        return self.app.state.services[name]


def load(*names: str, **options) -> dict[str, Pipeline]:
    return {name: vlm.load(name, device="cpu", **options) for name in names}


@functools.cache
def alone(name: str) -> Pipeline:
    """A model by itself, for the tests of all modules."""
    return vlm.load(name, device="cpu")


@contextlib.contextmanager
def serving(pipelines: dict[str, Pipeline], repositories: Repositories | None = None, **config) -> Iterator[Served]:
    settings = ServerConfig(**{"preprocess_workers": 0, **config})
    app = create_app(pipelines, settings, repositories)
    with listening(app, settings) as address:
        yield Served(address, app)


@contextlib.contextmanager
def listening(app: ASGIApp, settings: ServerConfig, path: Path | None = None) -> Iterator[str]:
    """The host:port where an application is served; `path`: of a socket, instead."""
    server = Server(app, settings, settings.drain_seconds)
    with socket.socket() if path is None else socket.socket(socket.AF_UNIX) as listener:
        listener.bind(("127.0.0.1", 0) if path is None else str(path))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        until(lambda: server.started)
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}" if path is None else str(path)
        finally:
            server.should_exit = True
            thread.join()


@contextlib.contextmanager
def command(*arguments: str, verb: str = "serve", ends_with: int = 0) -> Iterator[tuple[subprocess.Popen, str]]:
    """`vlm serve …` on a free port: (its process, host:port). Ends it with SIGTERM, which it has to obey."""
    line = [sys.executable, "-m", "vlm_app.cli.main", verb, *arguments, "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(line, cwd=EXAMPLES.parent, stderr=subprocess.PIPE, text=True)
    try:
        address = next((m[1] for said in process.stderr if (m := re.search(r"http://(\S+)", said))), None)
        assert address, f"{arguments} did not start"
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop it
        yield process, address
        process.terminate()
        assert process.wait() == ends_with
    finally:
        process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def aborts(engine: LLMEngine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The requests that are aborted from now on, as they are; until the first, steps take so long that none is done
    before somebody has gone away."""
    aborted, abort, step = [], engine.abort, engine.step

    def slow_step(**options):
        time.sleep(0 if aborted else 0.4)
        return step(**options)

    def noted_abort(request_id):
        aborted.append(request_id)
        return abort(request_id)

    monkeypatch.setattr(engine, "abort", noted_abort)
    monkeypatch.setattr(engine, "step", slow_step)
    return aborted


def until(holds) -> None:
    """Waits for what is bound to come; pytest's own limit ends a wait in vain."""
    while not holds():
        time.sleep(0.01)


def is_empty(pipeline: Pipeline) -> bool:
    """Has everything gone back to the pool?"""
    return not pipeline.llm.has_work and pipeline.llm.scheduler.blocks.balanced


def data_uri(file: Path, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"


def asked(text: str, *images: Path) -> list[dict]:
    """One message of the user."""
    parts = [{"type": "image_url", "image_url": {"url": data_uri(image)}} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
