"""Files made to stop a server: each costs its own request, within its budgets, and nothing is left running."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.kits.media_kit import Child, children, nested_forms, slow_page
from tests.kits.servers.server_kit import asked, command, until
from tests.unit.ocr.test_ocr import pages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]
EXAMPLES = ROOT / "examples"
BOMB = nested_forms()  # fills a worker's memory in about a second
SLOW = slow_page()  # where time is what ends it
MEMORY_MB = 600  # of a worker, beside what it holds


@dataclass
class Server:
    """`vlm serve mini-llava` with one worker, from without."""

    process: subprocess.Popen
    address: str

    def answers(self) -> bool:
        """Says whether it listens already."""
        try:
            return bool(self.health())
        except OSError:
            return False

    def health(self) -> dict:
        with urllib.request.urlopen(f"http://{self.address}/health") as answer:
            return json.load(answer)

    def ask(self, *parts: dict) -> tuple[int, str]:
        """(status, the answer's text or its error)"""
        connection = HTTPConnection(self.address)
        connection.request("POST", "/v1/chat/completions", _body(*parts), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, _said(json.load(answer))

    @property
    def workers(self) -> list[Child]:
        return children(self.process.pid)


def _said(answer: dict) -> str:
    return answer["error"]["message"] if "error" in answer else answer["choices"][0]["message"]["content"]


def _body(*parts: dict) -> str:
    content = [*parts, {"type": "text", "text": "Read the sign."}]
    return json.dumps({"model": "mini-llava", "messages": [{"role": "user", "content": content}]})


def document(content: bytes) -> dict:
    return {"type": "file", "file": {"file_data": "data:application/pdf;base64," + base64.b64encode(content).decode()}}


SCENE = asked("", EXAMPLES / "scene1.png")[0]["content"][0]


@contextlib.contextmanager
def serving(*options: str, ends_with: int = 0) -> Iterator[Server]:
    budget = ("--preprocess-workers", "1", "--media-memory-mb", str(MEMORY_MB))
    with command("mini-llava", *budget, *options, ends_with=ends_with) as (process, address):
        server = Server(process, address)
        until(server.answers)
        yield server


@contextlib.contextmanager
def under_way(server: Server, *parts: dict) -> Iterator[Future[tuple[int, str]]]:
    """A request that a worker is at."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.ask, *parts)
        until(lambda: server.health()["workers"]["busy"])
        yield answer


def gone(family: list[Child]) -> bool:
    return not any(process.is_alive() for process in family)


def test_a_bomb_is_refused_within_its_time_and_the_others_are_answered():
    with serving("--media-seconds", "1") as server:
        assert server.ask(SCENE) == (200, "GCV3U")
        with under_way(server, document(SLOW)) as refused:
            assert server.health()["status"] == "ok" and not refused.done()
            assert server.ask(SCENE) == (200, "GCV3U")  # the next in the queue
            assert refused.result() == (
                400,
                "reading the images took longer than 1 s; send less at once, or a simpler file.",
            )
        assert server.health()["workers"] == {"alive": 1, "busy": 0, "restarts": 1, "longest_seconds": 0.0}
        with urllib.request.urlopen(f"http://{server.address}/metrics") as metrics:
            assert b'vlm_media_worker_restarts_total{reason="timeout"} 1.0' in metrics.read()


def test_a_bomb_is_refused_within_its_memory():
    with serving("--media-seconds", "1000") as server:
        assert server.ask(SCENE)[0] == 200
        before = max(process.peak_mb for process in server.workers)
        with under_way(server, document(BOMB)) as refused:
            peak = before
            while not refused.done():
                peak = max([peak, *(process.peak_mb for process in server.workers)])
            status, sentence = refused.result()
        assert status == 400 and sentence.startswith("reading the images broke the process that did it")
        assert before < peak < before + MEMORY_MB + 50
        assert server.ask(SCENE) == (200, "GCV3U")


def test_a_client_that_leaves_takes_its_bomb_along():
    with serving("--media-seconds", "1000") as server:
        connection = HTTPConnection(server.address)
        connection.request("POST", "/v1/chat/completions", _body(document(SLOW)), {"Content-Type": "application/json"})
        until(lambda: server.health()["workers"]["busy"])
        connection.close()
        assert server.ask(SCENE) == (200, "GCV3U")  # by the only worker
        assert server.health()["workers"]["restarts"] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_server_with_a_bomb(number):
    options = ("--media-seconds", "1000", "--drain-seconds", "1")
    expected = 0 if number == signal.SIGTERM else -number
    with (
        serving(*options, ends_with=expected) as server,
        contextlib.suppress(OSError),
        under_way(server, document(SLOW)),
    ):
        family = server.workers
        server.process.send_signal(number)
        server.process.wait()
    assert len(family) >= 2
    until(lambda: gone(family))


def test_in_the_demo_a_bomb_costs_its_tab(tmp_path):
    gradio_client = pytest.importorskip("gradio_client", reason="pip install 'vlm-runtime[demo]'")
    for name, content in {"bomb": BOMB, "slow": SLOW}.items():
        (tmp_path / f"{name}.pdf").write_bytes(content)
    bomb, slow, page = (
        gradio_client.handle_file(str(path))
        for path in (tmp_path / "bomb.pdf", tmp_path / "slow.pdf", EXAMPLES / "page.png")
    )
    with command("mini-nougat", "--media-seconds", "1000", "--media-memory-mb", str(MEMORY_MB), verb="demo") as (
        process,
        address,
    ):
        client, other = (gradio_client.Client(f"http://{address}", verbose=False) for _ in range(2))
        at_work = client.submit(slow, 1, api_name="/read")
        assert len(other.predict(page, 1, api_name="/read")[0]) > 100 and not at_work.done()
        with pytest.raises(gradio_client.exceptions.AppError, match="broke the process that did it"):
            other.predict(bomb, 1, api_name="/read")
        family = children(process.pid)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 0
        until(lambda: gone(family))


def test_in_the_demo_a_preview_of_a_bomb_is_given_up(tmp_path):
    gradio = pytest.importorskip("gradio", reason="pip install 'vlm-runtime[demo]'")
    import asyncio
    from types import SimpleNamespace

    from vlm.processing.media.pool import MediaConfig, MediaPool
    from vlm.processing.workers.process import Budget
    from vlm_app.demo.answers import show_errors
    from vlm_app.demo.read import ReadTab

    path = tmp_path / "slow.pdf"
    path.write_bytes(SLOW)
    media = MediaPool(MediaConfig(1, budget=Budget(1.0, MEMORY_MB)))
    tab = ReadTab({"mini-nougat": SimpleNamespace(media=media)})

    async def told(handler, *arguments) -> str:
        with pytest.raises(gradio.Error) as error:
            [state async for state in show_errors(handler)(*arguments)]
        return error.value.message

    with contextlib.closing(media):
        for handler, *arguments in ((tab.open, str(path)), (tab.turn, str(path), 1)):
            assert "reading slow.pdf took longer than 1 s" in asyncio.run(told(handler, *arguments))


def _ocr(folder: Path, output: Path) -> subprocess.Popen:
    line = [sys.executable, "-m", "vlm_app.cli.main", "ocr", str(folder), "-o", str(output), "--model", "mini-nougat"]
    options = ["--device", "cpu", "--workers", "1"]
    return subprocess.Popen([*line, *options], stderr=subprocess.PIPE, text=True, cwd=EXAMPLES.parent)


def test_an_ocr_job_that_is_killed_leaves_no_renderer(tmp_path):
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "bomb.pdf").write_bytes(BOMB)
    job = _ocr(tmp_path / "scans", tmp_path / "text")
    until(lambda: any(child.peak_mb > 1000 for child in children(job.pid)))  # it is at it
    family = children(job.pid)
    job.kill()
    job.wait()
    until(lambda: gone(family))


def test_a_bomb_costs_an_ocr_job_one_document(tmp_path):
    """It is ended by its memory; `test_ocr_rendering.py` has its time."""
    (tmp_path / "scans").mkdir()
    (tmp_path / "scans" / "bomb.pdf").write_bytes(BOMB)
    pages(tmp_path / "scans" / "good.pdf", 2)
    job = _ocr(tmp_path / "scans", tmp_path / "text")
    said = job.communicate()[1]
    assert job.returncode == 1 and "bomb.pdf page 1 crashed its renderer" in said
    assert (tmp_path / "text" / "good.md").read_text()
    assert not (tmp_path / "text" / "bomb.md").exists()
