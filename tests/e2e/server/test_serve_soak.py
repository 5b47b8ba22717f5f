"""Ten minutes of all that a server does: every answer is the right one, and its memory stays flat."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.server.test_serve_load import Ask, answer, expected, make
from tests.kits.servers.server_kit import EXAMPLES, alone, asked, command, until

SECONDS = int(os.environ.get("VLM_SOAK_SECONDS", 600))
CLIENTS = 12
GROWTH = 0.02  # of the memory: what is no leak
MODELS = ("mini-t5", "mini-llava", "mini-nougat")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(SECONDS + 1800)]


def resident(process: int) -> int:
    """Bytes that a process and its children hold."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    held = int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return held + sum(resident(int(child)) for file in tasks for child in file.read_text().split())


def new_pages(folder: Path) -> Iterator[Ask]:
    """Pages that nobody has sent before: no cache may keep them all."""
    for number in itertools.count():
        page = Image.open(EXAMPLES / "page.png").convert("RGB")
        page.putpixel((number % page.width, number // page.width), (255, 0, 0))
        page.save(folder / "page.png")
        yield Ask("mini-nougat", {}, asked("", folder / "page.png"), {"max_tokens": 40}, 3 if number % 3 == 2 else None)


async def ask_on(
    client: openai.AsyncOpenAI, number: int, asks: list[tuple[Ask, str]], pages: Iterator[Ask], end: float
) -> int:
    """The client of a number: one stream after the other; returns how many ended."""
    chance, ended = random.Random(number), 0
    while time.monotonic() < end:
        known, right = chance.choice(asks)
        text = await answer(client, known)
        assert text is None or text == right
        await answer(client, next(pages))
        ended += text is not None
    return ended


async def soak(url: str, process: int, asks: list[tuple[Ask, str]], folder: Path) -> tuple[int, list[int]]:
    """(answers, bytes held second by second)"""
    pages, end = new_pages(folder), time.monotonic() + SECONDS
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        clients = asyncio.gather(*(ask_on(client, number, asks, pages, end) for number in range(CLIENTS)))
        held = []
        while not clients.done():
            held.append(resident(process))
            await asyncio.sleep(1)
        return sum(await clients), held


def gauges(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}/metrics") as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    names = ("vlm_running_outputs", "vlm_waiting_outputs", "vlm_kv_cache_used_ratio")
    return {f"{s.name} {s.labels}": s.value for family in families for s in family.samples if s.name in names}


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="memory is read from /proc")
def test_answers_stay_right_and_memory_flat(tmp_path):
    chance = random.Random(0)
    models = {name: alone(name) for name in MODELS}
    asks = [(ask, expected(models, ask)) for ask in (make(number, chance) for number in range(24))]
    with command(*MODELS, "--preprocess-workers", "1") as (process, address):
        url = f"http://{address}"
        answers, held = asyncio.run(soak(url, process.pid, asks, tmp_path))
        until(lambda: not any(gauges(url).values()))
    early, late = (statistics.median(part) for part in (held[len(held) // 3 : len(held) // 2], held[-len(held) // 6 :]))
    print(f"{answers} answers; {early / 2**20:.0f} MiB after a third, {late / 2**20:.0f} at the end")
    assert answers >= CLIENTS
    assert late < early * (1 + GROWTH), f"{late / 2**20:.0f} MiB at the end, {early / 2**20:.0f} after a third"
