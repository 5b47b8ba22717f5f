"""A process that is left too little memory for one request: `python -m tests.kits.out_of_memory BACKEND` prints a line
each of a small request before it, the large one, its encoding, a small one after it, and the large one with memory
again."""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

import vlm
from tests.kits.servers.server_kit import is_empty
from vlm.api.async_pipeline import AsyncPipeline
from vlm.errors import OutOfMemoryError
from vlm.processing.media.pool import MediaConfig, MediaPool

SMALL = {"text": "translate English to German: The old ship is small."}
LARGE = {"encoder_input_ids": [5 + i % 100 for i in range(4090)]}
ROOM = 16 * 2**20


def limit(more: int | None) -> None:
    """Lets the process take so much more memory; None: as much as there is."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
    held = int(line.split()[1]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY if more is None else held + more, -1))


async def answer(model: AsyncPipeline, source: dict) -> str:
    try:
        [output] = await model.generate(await model.request(source, [], max_new_tokens=12))
    except OutOfMemoryError as error:
        return f"OutOfMemoryError: {error}"
    return output.text


async def encoding(model: AsyncPipeline, source: dict) -> str:
    try:
        [found] = await model.encode([source], [[]])
    except OutOfMemoryError as error:
        return f"OutOfMemoryError: {error}"
    return f"{len(found.last_hidden_state)} rows"


async def main(backend: str) -> None:
    pipeline = vlm.load("mini-t5", device="cpu", max_encoder_input_len=4096, max_batch_size=2, backend=backend)
    model = AsyncPipeline(pipeline, MediaPool(MediaConfig()))
    model.start()
    await asyncio.gather(*(asyncio.to_thread(asyncio.run, asyncio.sleep(0.1)) for _ in range(4)))  # starts the threads
    print(await answer(model, SMALL))
    limit(ROOM)
    print(await answer(model, LARGE))
    print(await encoding(model, LARGE))
    print(await answer(model, SMALL))
    assert is_empty(pipeline) and model.engine.error is None
    limit(None)
    print(await answer(model, LARGE))
    await model.close()


asyncio.run(main(sys.argv[1]))
