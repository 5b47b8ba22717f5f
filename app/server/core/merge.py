"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge_bursts(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[list[tuple[int, T]], None]:
    """Yields lists of (number of the stream, item): all that has come since the last one, for a step of the engine
    brings an item for each of many streams. All end when one fails or the iteration is left."""
    results: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue()

    async def drain(number: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream):
                async for item in stream:
                    results.put_nowait((number, item))
            results.put_nowait(None)
        except Exception as error:
            results.put_nowait(error)

    tasks = [asyncio.create_task(drain(number, stream)) for number, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            first = await results.get()
            come = [first, *(results.get_nowait() for _ in range(results.qsize()))]
            failure = next((result for result in come if isinstance(result, Exception)), None)
            running -= come.count(None)
            if burst := [result for result in come if isinstance(result, tuple)]:
                yield burst
            if failure is not None:
                raise failure
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
