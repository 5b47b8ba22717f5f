"""A run: requests sent at their times, whether or not earlier ones have been answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from vlm_app.bench.serving.outcome import Outcome
from vlm_app.core.processes import garbage

Send = Callable[[bytes], Awaitable[Outcome]]


@dataclass
class Run:
    """What was measured at one rate."""

    outcomes: list[Outcome] = field(default_factory=list)
    seconds: float = 0.0  # from the beginning to the last end
    peak_concurrency: int = 0
    lags: list[float] = field(default_factory=list)  # seconds that the client was late, a request
    queued: list[float] = field(default_factory=list)  # seconds that a request waited for --max-concurrency
    cpu_share: float = 0.0  # of one core, of the client
    _in_flight: int = 0

    @contextlib.contextmanager
    def one_more(self) -> Iterator[None]:
        """Counts a request that is on its way."""
        self._in_flight += 1
        self.peak_concurrency = max(self.peak_concurrency, self._in_flight)
        try:
            yield
        finally:
            self._in_flight -= 1


async def run_load(
    send: Send,
    bodies: Sequence[bytes],
    times: Sequence[float],
    *,
    max_concurrency: int | None,
    progress: Callable[[int], object],
) -> Run:
    """Sends each body at its time, in seconds from now; `progress` is told how many have been answered."""
    run, limit = Run(), asyncio.Semaphore(max_concurrency or len(bodies))

    async def one(body: bytes) -> None:
        due = time.perf_counter()
        async with limit:
            run.queued.append(time.perf_counter() - due)
            with run.one_more():
                run.outcomes.append(await send(body))
        progress(len(run.outcomes))

    garbage.collect()  # now, not while requests are on their way
    began, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as requests:
        for body, due in zip(bodies, times, strict=True):
            await asyncio.sleep(max(0.0, began + due - time.perf_counter()))
            run.lags.append(time.perf_counter() - began - due)
            requests.create_task(one(body))
    run.seconds = time.perf_counter() - began
    run.cpu_share = (time.process_time() - cpu) / run.seconds
    return run
