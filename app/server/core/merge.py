"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merge_streams(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yields (number of the stream, item) as they come; all end when one fails or the iteration is left."""
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
            result = await results.get()
            if isinstance(result, Exception):
                raise result
            running -= result is None
            if result is not None:
                yield result
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
