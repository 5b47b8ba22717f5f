"""Worker processes, a thread each, that take calls from one queue."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from vlm.processing.worker_process import Budget, WorkerFailure, WorkerProcess

CLOSE_SECONDS = 5.0  # for threads that wait for a process to start; they end with it
LAST = -1  # before every call: a thread that takes it ends


@dataclass(frozen=True)
class PoolState:
    """What the workers do now."""

    alive: int  # processes that are ready
    busy: int
    restarts: int  # since the pool was started
    longest_seconds: float  # for which one of them has been at its call


class Call(Future[Any]):
    """A call that waits or runs. One that is cancelled in time holds nothing."""

    def __init__(self, function: Callable[[WorkerProcess], Any]):
        super().__init__()
        self._function: Callable[[WorkerProcess], Any] | None = function
        self._worker: WorkerProcess | None = None
        self._lock = threading.Lock()

    def run(self, worker: WorkerProcess) -> None:
        """Runs the call in the worker's thread."""
        if not self.set_running_or_notify_cancel():
            return
        with self._lock:
            self._worker = worker
        assert self._function is not None  # only what was cancelled or has failed holds none
        try:
            result = self._function(worker)
        except Exception as error:
            self._release()
            self.set_exception(error)
        else:
            self._release()
            self.set_result(result)

    def fail(self, error: Exception) -> None:
        """Tells whoever waits for it that it will not run."""
        if self.set_running_or_notify_cancel():
            self._function = None
            self.set_exception(error)

    def cancel(self) -> bool:
        """Drops it, with what it holds, if it waits."""
        if not super().cancel():
            return False
        self._function = None
        return True

    def kill(self) -> None:
        """Ends it whether it waits or runs."""
        if self.cancel():
            return
        with self._lock:
            if self._worker is not None:
                self._worker.kill()

    def _release(self) -> None:
        """From now on the worker is another call's."""
        self._function = None
        with self._lock:
            self._worker = None


class WorkerPool:
    """So many processes; one that ends is started again at once, while the others go on."""

    def __init__(self, workers: int, budget: Budget, preload: str):
        self.budget = budget
        self._waiting: queue.PriorityQueue[tuple[int, int, Call | None]] = queue.PriorityQueue()
        self._count = itertools.count()
        self._workers = [WorkerProcess(budget, preload) for _ in range(workers)]
        self._threads: list[threading.Thread] = []
        self._closed = False

    def start(self) -> None:
        """Starts the processes, without waiting for them."""
        if not self._threads:
            self._threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self._workers]
            for thread in self._threads:
                thread.start()

    def submit(self, function: Callable[[WorkerProcess], Any], order: int = 0) -> Call:
        """Calls a function, in a thread, with a worker that is free; of those that wait the lowest `order` is first."""
        call = Call(function)
        if self._closed:
            call.fail(WorkerFailure("stopped"))
            return call
        self.start()
        self._waiting.put((order, next(self._count), call))
        return call

    def close(self) -> None:
        """Ends all processes at once, whatever they do, and drops what waits."""
        self._closed = True
        self._drop_waiting()
        for _ in self._threads:
            self._waiting.put((LAST, next(self._count), None))
        until = time.monotonic() + CLOSE_SECONDS
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < until:
            for worker in self._workers:  # again: one may just have been started
                worker.kill()
            for thread in self._threads:
                thread.join(0.05)

    @property
    def is_broken(self) -> bool:
        """Says whether no process can be started."""
        return all(worker.cannot_start and worker.failures["start"] for worker in self._workers)

    @property
    def failures(self) -> Counter[str]:
        """Returns how many processes have ended, by the kind of WorkerFailure."""
        return sum((worker.failures for worker in self._workers), Counter())

    def state(self) -> PoolState:
        now = time.monotonic()
        busy = [now - since for worker in self._workers if (since := worker.busy_since) is not None]
        alive = sum(worker.is_ready for worker in self._workers)
        return PoolState(alive, len(busy), self.failures.total(), round(max(busy, default=0.0), 1))

    def _serve(self, worker: WorkerProcess) -> None:
        while not self._closed:
            with contextlib.suppress(WorkerFailure):  # the next call is told of it, or has more luck
                worker.start()
            if (call := self._waiting.get()[2]) is None:
                break
            call.run(worker)
            del call  # with what it holds: the next one may be long in coming
        worker.close()

    def _drop_waiting(self) -> None:
        while not self._waiting.empty():
            if call := self._waiting.get()[2]:
                call.fail(WorkerFailure("stopped"))
