"""Who gets a model's places for outputs, and who waits for them."""

from __future__ import annotations

import asyncio

import pytest

from vlm.errors import LimitError
from vlm_app.server.core.errors import Busy
from vlm_app.server.repository.room import Room


def test_slots_are_acquired_together_and_left_one_by_one():
    refusals: list[int] = []
    room = Room("m", 4, lambda: refusals.append(1))
    first, second = room.acquire([1, 2])
    with first, second:
        with pytest.raises(Busy, match="m holds 3 requests of 4 at most; ask again later"):
            room.acquire([1, 1])
        assert room.held == 3 and refusals == [1]
        with first:
            pass
        assert room.held == 2
    assert room.held == 0
    with pytest.raises(LimitError, match="5 outputs were asked for at once; m holds 4 at most"):
        room.acquire([2, 3])


def test_who_waits_longest_is_first_and_leaves_places_to_others():
    async def run() -> list[str]:
        room, order = Room("m", 8, lambda: None), list[str]()
        [seven] = room.acquire([7])

        async def wait(name: str, count: int) -> None:
            await room.wait(count)
            room.acquire([count])
            order.append(f"{name} at {room.held}")

        waiting = [asyncio.create_task(wait(*each)) for each in (("many", 6), ("few", 1), ("last", 1))]
        await asyncio.sleep(0)
        [other] = room.acquire([1])  # the place that is left
        for slot in (other, seven):
            assert order == []
            with slot:
                pass
        await asyncio.wait(waiting[:2])
        assert not waiting[2].done()
        waiting[2].cancel()
        with pytest.raises(LimitError):
            await room.wait(9)
        return order

    assert asyncio.run(run()) == ["many at 6", "few at 7"]
