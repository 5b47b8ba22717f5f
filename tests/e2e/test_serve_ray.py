"""`vlm serve --ray`, on this machine."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

pytest.importorskip("ray.serve", reason="the extra ray is not installed", exc_type=ImportError)

from tests.media_kit import children
from tests.server_kit import alone, asked, command, until

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
