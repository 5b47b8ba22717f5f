"""Streams of one request as one."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from vlm_app.server.core.merge import merge_bursts


def test_what_a_step_brings_for_all_streams_comes_in_one_piece():
    async def sizes() -> list[int]:
        steps = [asyncio.Event() for _ in range(3)]

        async def stream():
            for step in steps:
                await step.wait()
                yield step

        found = []
        async with aclosing(merge_bursts([stream() for _ in range(8)])) as bursts:
            for step in steps:
                step.set()
                found.append(len(await anext(bursts)))
            assert await anext(bursts, None) is None
        return found

    assert asyncio.run(sizes()) == [8, 8, 8]


def test_what_came_before_a_stream_failed_is_not_lost_and_the_others_end():
    closed = []

    async def stream(number: int):
        try:
            yield "first"
            if number == 1:
                raise ValueError
            await asyncio.sleep(60)
        finally:
            closed.append(number)

    async def all_of_them() -> list:
        found = []
        with pytest.raises(ValueError):
            async with aclosing(merge_bursts([stream(number) for number in range(3)])) as bursts:
                async for burst in bursts:
                    found += burst
        return found

    assert asyncio.run(all_of_them()) == [(number, "first") for number in range(3)] and sorted(closed) == [0, 1, 2]
