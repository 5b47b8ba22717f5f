"""The processes that read media (images, pages of documents), for a server, a demo, or jobs over documents."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from vlm.errors import EngineError, ImageError
from vlm.limits import MAX_PIXELS
from vlm.options import option
from vlm.processing.workers.call import Call
from vlm.processing.workers.call_queue import CallQueue, Lane, lanes_of
from vlm.processing.workers.fork_server import Preparation
from vlm.processing.workers.process import POSTPONED, Budget, GiveWay, WorkerFailure, WorkerProcess

CLOSE_SECONDS = 5.0  # for threads that wait for a process to start; they end with it
LOCAL_THREADS = 2
QUICK_SECONDS = 3.0  # for a call while others wait; it is then put behind them
LONGER = 4  # times as long, each time that it runs again


@dataclass(frozen=True)
class MediaConfig:
    """How media are read, what one request may bring, and what reading it may cost."""

    workers: int = 0  # processes; 0: threads of this process, which no budget bounds
    max_images: int = 16  # of a request; pages of PDFs count
    max_pixels: int = MAX_PIXELS  # of an image
    budget: Budget = field(default_factory=Budget)  # of a call
    quick_seconds: float = QUICK_SECONDS  # of it, until a call gives way to others that wait
    preload: str = "vlm.processing.media.preload"  # what processes import before they are ready
    exact_pixels: bool = option(
        False, "Pages are drawn at 200 dpi and JPEGs decoded whole, not at the size that the model keeps."
    )


@dataclass(frozen=True)
class PoolState:
    """What the workers do now."""

    alive: int  # processes that are ready
    busy: int
    restarts: int  # since the pool was started
    longest_seconds: float  # for which one of them has been at its call


class MediaPool:
    """Processes that read media, one call each at a time; one that ends is started again at once, while the others go
    on. A call that takes long while others wait is stopped, and runs again behind them, on some of the processes alone.
    Without processes, threads of this one."""

    def __init__(self, config: MediaConfig):
        self.config = config
        self._waiting = CallQueue()
        self._workers = [WorkerProcess(config.budget, config.preload) for _ in range(config.workers)]
        self._lanes = {worker: lanes_of(number, config.workers) for number, worker in enumerate(self._workers)}
        self._local = None if config.workers else ThreadPoolExecutor(LOCAL_THREADS, thread_name_prefix="media")
        self._threads: list[threading.Thread] = []
        self._preparations: tuple[Preparation, ...] = ()
        self._closed = False

    def start(self) -> None:
        """Starts the processes, without waiting for them."""
        if not self._threads:
            self._threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self._workers]
            for thread in self._threads:
                thread.start()

    def prepare(self, preparation: Preparation) -> None:
        """Lets the processes run a module's function before they are ready. Those that are ready are replaced, each
        when it is free."""
        if preparation in self._preparations:
            return
        self._preparations += (preparation,)
        for _ in self._threads:
            self._waiting.put(Call(lambda worker: None), Lane.RENEWAL)

    async def run(self, what: str, function: Callable[..., Any], *arguments: Any, lane: Lane = Lane.IMAGES) -> Any:
        """Calls a module's function there; `what` it reads is told in errors. Who stops waiting ends the call. One that
        has given way to others is called again from its beginning.

        Raises what the function raises, ImageError where it was over its budget, EngineError without a process.
        """
        if self._local is not None:
            return await asyncio.get_running_loop().run_in_executor(self._local, function, *arguments)
        budget, after = self.config.budget, self.config.quick_seconds
        seconds = budget.seconds
        while True:
            call = self._turn(lane, seconds, after, function, arguments)
            try:
                return await asyncio.wrap_future(call)
            except WorkerFailure as failure:
                if failure.kind != POSTPONED:
                    raise _told(failure.kind, what, budget) from None
            finally:
                call.kill()  # for nothing, if it has ended
            # beyond that it had a worker that nobody else wanted
            lane, seconds, after = Lane.POSTPONED, seconds - after, after * LONGER

    def submit(self, function: Callable[[WorkerProcess], Any], order: int = 0, lane: Lane = Lane.IMAGES) -> Call:
        """Calls a function, in a thread, with a worker that is free; of a lane's the lowest `order` is first."""
        call = Call(function)
        if not self._closed:
            self.start()
        if not self._waiting.put(call, lane, order):
            call.fail(WorkerFailure("stopped"))
        return call

    def close(self) -> None:
        """Ends all processes at once, whatever they do, and drops what waits."""
        self._closed = True
        if self._local is not None:
            self._local.shutdown(wait=False, cancel_futures=True)
        for call in self._waiting.close():
            call.fail(WorkerFailure("stopped"))
        until = time.monotonic() + CLOSE_SECONDS
        while (alive := [each for each in self._threads if each.is_alive()]) and time.monotonic() < until:
            for worker in self._workers:  # again: one may just have been started
                worker.end()
            alive[0].join(0.05)

    @property
    def has_processes(self) -> bool:
        return bool(self._workers)

    @property
    def is_broken(self) -> bool:
        """Says whether no process can be started."""
        return self.has_processes and all(worker.cannot_start and worker.failures["start"] for worker in self._workers)

    @property
    def failures(self) -> Counter[str]:
        """Returns how many processes have ended, by the kind of WorkerFailure."""
        return sum((worker.failures for worker in self._workers), Counter())

    def state(self) -> PoolState:
        now = time.monotonic()
        busy = [now - since for worker in self._workers if (since := worker.busy_since) is not None]
        alive = sum(worker.is_ready for worker in self._workers)
        return PoolState(alive, len(busy), self.failures.total(), round(max(busy, default=0.0), 1))

    def _turn(
        self, lane: Lane, seconds: float, after: float, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> Call:
        """Submits a call that has so many seconds, and gives way `after` some of them to others that wait."""

        def run(worker: WorkerProcess) -> Any:
            give_way = GiveWay(after, partial(self._waiting.has_any, self._lanes[worker]))
            return worker.run(function, *arguments, seconds=seconds, give_way=give_way)

        return self.submit(run, lane=lane)

    def _serve(self, worker: WorkerProcess) -> None:
        while not self._closed:
            with contextlib.suppress(WorkerFailure):  # the next call is told of it, or has more luck
                worker.start(self._preparations)
            if (call := self._waiting.take(self._lanes[worker])) is None:
                break
            call.run(worker)
            del call  # with what it holds: the next one may be long in coming
        worker.close()


def _told(kind: str, what: str, budget: Budget) -> ImageError | EngineError:
    if kind == "start":
        return EngineError("the processes that read images cannot be started; the server's log says why.")
    if kind == "stopped":
        return EngineError("the server is ending; send the images to another one, or later.")
    sentence = {
        "timeout": f"reading {what} took longer than {budget.seconds:g} s; send less at once, or a simpler file",
        "memory": f"reading {what} takes more than {budget.memory_mb:,} MB; send less at once, or a smaller file",
        "crash": f"reading {what} broke the process that did it; send less at once, or a sounder file",
    }
    return ImageError(f"{sentence[kind]}.", kind)
