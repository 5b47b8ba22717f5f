"""How many outputs a model holds at once, and who waits for room."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType

from vlm.errors import LimitError
from vlm_app.server.core.errors import Busy

LEFT = 8  # who waits leaves one place in so many to those who are refused where there is none


class Slot:
    """Room that is held for outputs until it is left."""

    def __init__(self, count: int, release: Callable[[int], None]):
        self._count, self._release = count, release

    def __enter__(self) -> Slot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        count, self._count = self._count, 0  # whoever leaves it first
        self._release(count)


class Room:
    """A model's places for outputs, running or waiting."""

    def __init__(self, name: str, size: int, on_refusal: Callable[[], object]):
        self._name, self.size, self._on_refusal = name, size, on_refusal
        self.held = 0
        self._turns, self._left = asyncio.Lock(), asyncio.Event()

    def acquire(self, counts: Sequence[int]) -> list[Slot]:
        """Returns slots of so many outputs each. Raises Busy where there is no room for all of them now, LimitError
        where there never is."""
        count = sum(counts)
        self._check_size(count)
        if self.held + count > self.size:
            self._on_refusal()
            raise Busy(f"{self._name} holds {self.held} requests of {self.size} at most; ask again later.")
        self.held += count
        return [Slot(each, self._release) for each in counts]

    async def wait(self, count: int) -> None:
        """Returns when so many outputs can be acquired, at once, without taking what is left to those who do not wait.
        Who waits longest is first. Raises LimitError where there never is room."""
        self._check_size(count)
        most = max(count, self.size - self.size // LEFT)
        async with self._turns:
            while self.held + count > most:
                self._left.clear()
                await self._left.wait()

    def _check_size(self, count: int) -> None:
        if count > self.size:
            raise LimitError(
                f"{count:,} outputs were asked for at once; {self._name} holds {self.size:,} at most. Ask for fewer in"
                " a request.",
                settings=("num_return_sequences",),
            )

    def _release(self, count: int) -> None:
        self.held -= count
        self._left.set()
