"""How long an engine's thread has been at one step: what waits for a GPU, or for another rank, may do so for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

STEP_SECONDS = 300.0  # far more than any step takes, even the first one of its shape
CHECKS = 10  # in that time


class StepWatch:
    """One thread says when it is at a step, an event loop finds out that one takes too long."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._began: float | None = None

    @contextmanager
    def step(self) -> Iterator[None]:
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._began = None

    async def overrun(self) -> None:
        """Returns once a step has taken longer than it may."""
        while (began := self._began) is None or time.monotonic() - began <= self.seconds:
            await asyncio.sleep(self.seconds / CHECKS)
