"""`vlm serve --ray`, on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

pytest.importorskip("ray.serve", reason="the extra ray is not installed", exc_type=ImportError)

from tests.kits.cli_kit import call
from tests.kits.media_kit import children
from tests.kits.servers.server_kit import alone, asked, command, until

TEXTS = [f"translate English to German: {number} May 2019" for number in range(40)]


def replica_pids(server: int) -> list[int]:
    """The processes of Ray's that hold a model; they call themselves so."""
    titles = {child.pid: Path(f"/proc/{child.pid}/cmdline") for child in children(server)}
    return [pid for pid, title in titles.items() if title.exists() and "ray::ServeReplica" in title.read_text()]


def ask(client: openai.OpenAI, text: str) -> str:
    """A stream's text for every second one."""
    options = {"model": "mini-t5", "messages": asked(text)}
    if TEXTS.index(text) % 2:
        return client.chat.completions.create(**options).choices[0].message.content
    chunks = client.chat.completions.create(**options, stream=True)
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@pytest.mark.slow
def test_nothing_is_lost_or_mixed_while_ray_starts_a_replica_again():
    expected = [alone("mini-t5").generate(text=text).text for text in TEXTS]
    with (
        command("mini-t5", "--ray", "--replicas", "2", "--api-key", "k") as (process, address),
        openai.OpenAI(base_url=f"http://{address}/v1", api_key="k", max_retries=8) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        until(lambda: len(replica_pids(process.pid)) == 2)
        first, second = replica_pids(process.pid)
        assert [*pool.map(lambda text: ask(client, text), TEXTS)] == expected
        answers = [pool.submit(ask, client, text) for text in TEXTS]
        os.kill(first, signal.SIGKILL)
        assert [answer.result() for answer in answers] == expected
        until(lambda: len({*replica_pids(process.pid)} - {first}) == 2)
        assert second in replica_pids(process.pid)


@pytest.mark.slow
def test_ray_tells_why_no_replica_starts(tmp_path):
    """In a process of its own, which Ray's leave with."""
    assert call("build", "mini-t5", "-o", tmp_path / "t5", "--backend", "onnxruntime").exit_code == 0
    vlm = [sys.executable, "-m", "vlm_app.cli.main", "serve", str(tmp_path / "t5"), "--ray", "--port", "0"]
    refused = subprocess.run([*vlm, "--num-speculative-tokens", "2"], capture_output=True, text=True, check=False)
    [line] = [line for line in refused.stderr.splitlines() if line.startswith("vlm: ")]
    assert refused.returncode == 2
    assert "has not started the replicas: --num-speculative-tokens is 2, which is for backend torch" in line
