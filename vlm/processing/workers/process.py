"""A process that runs functions one at a time, within budgets of time and memory, and dies with its parent."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.util import is_exiting
from typing import Any

from vlm.errors import InputError
from vlm.limits import MEDIA_MEMORY_MB, MEDIA_SECONDS
from vlm.processing.workers.fork_server import Preparation, start_fork_server
from vlm.processing.workers.result_buffer import Message, ResultBuffer
from vlm.processing.workers.serving import ERROR, OUT_OF_MEMORY, serve

START_SECONDS = 600.0  # until a process is ready: a cold disk reads its libraries for minutes
LOOK_SECONDS = 0.1  # between two looks for who waits
POSTPONED = "postponed"
STARTS = 8  # at once: processes are forked one after another, and who waits for that holds up the end of this one
_starts = threading.BoundedSemaphore(STARTS)


@dataclass(frozen=True)
class Budget:
    """What one call may cost."""

    seconds: float = MEDIA_SECONDS
    memory_mb: int = MEDIA_MEMORY_MB  # beside what the process holds when it is ready; bounded on Linux alone

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf"):
            raise InputError(f"media_seconds is {self.seconds:g}; it must be more than 0.", settings=("media_seconds",))
        if self.memory_mb < 1:
            raise InputError(
                f"media_memory_mb is {self.memory_mb}; it must be at least 1.", settings=("media_memory_mb",)
            )


@dataclass(frozen=True)
class GiveWay:
    """When a call is stopped for others: as soon as it `is_due`, once so many seconds have passed."""

    after: float
    is_due: Callable[[], bool]


class WorkerFailure(Exception):
    """A call has no result. `kind`: timeout, memory, crash, stopped (by `kill`), postponed (it has given way to
    others), or start (there is no process)."""

    def __init__(self, kind: str):
        super().__init__(kind)
        self.kind = kind


class WorkerProcess:
    """Used by one thread; any other may call `kill` and `end`.

    `preload`: a module that is imported outside of the budget. Processes are forked from one that has imported it and
    does nothing else, so that to start one again takes no time (where there are no forks each imports it for itself).
    """

    def __init__(self, budget: Budget, preload: str):
        self.budget, self._preload = budget, preload
        self._preparations: tuple[Preparation, ...] = ()
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._buffer: ResultBuffer | None = None
        self._lock = threading.Lock()
        self._killed = self._has_ended = False
        self.is_ready = self.cannot_start = False
        self.failures = Counter[str]()  # by kind
        self.busy_since: float | None = None  # monotonic time

    def start(self, preparations: tuple[Preparation, ...] = ()) -> None:
        """Starts the process where there is none that has run the preparations, outside of the budget, and waits until
        it is ready. Raises WorkerFailure."""
        if preparations != self._preparations:
            self.close()
            self._preparations = preparations
        self._connected()

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float | None = None,
        give_way: GiveWay | None = None,
    ) -> Any:
        """Returns what a function of a module returns there, or raises what it raises, or WorkerFailure. `seconds`: for
        this call, where that is less than the budget has. `give_way`: when it is stopped before; None: never."""
        pipe, buffer = self._connected()
        self.busy_since = time.monotonic()
        try:
            with self._ended_by("crash"):
                pipe.send((function, arguments))
                kind, message = _answer(pipe, min(seconds or self.budget.seconds, self.budget.seconds), give_way)
                value = buffer.read(message)
        finally:
            self.busy_since = None
        if kind == ERROR:
            raise value
        return value

    def kill(self) -> None:
        """Ends the process at once; any thread may call it. What runs there fails with the kind "stopped"."""
        with self._lock:
            if self._process is not None:
                self._killed = True
                self._process.kill()

    def end(self) -> None:
        """Ends the process at once, and starts no other one; any thread may call it."""
        self._has_ended = True
        self.kill()

    def _connected(self) -> tuple[Connection, ResultBuffer]:
        """Returns the ways to a process that is ready, a new one where there is none. Raises WorkerFailure."""
        pipe, buffer = self._pipe, self._buffer
        # what comes when nobody is asked is its end
        if pipe and buffer and self.is_ready and not self._killed and not pipe.poll():
            return pipe, buffer
        self.close()
        self.cannot_start = True
        with self._ended_by("start"):
            buffer = ResultBuffer.new()
            process, pipe = self._started(buffer)
            with self._lock:
                self._process, self._pipe, self._buffer = process, pipe, buffer
            _answer(pipe, START_SECONDS)
        self.is_ready, self.cannot_start = True, False
        return pipe, buffer

    def _started(self, buffer: ResultBuffer) -> tuple[BaseProcess, Connection]:
        with _starts:
            # multiprocessing that has ended all processes would wait for a new one for ever
            if self._has_ended or is_exiting():
                raise WorkerFailure("stopped")
            context = start_fork_server(self._preload, self._preparations)
            pipe, theirs = context.Pipe()
            arguments = (theirs, buffer, self.budget.memory_mb, self._preload, self._preparations)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
        theirs.close()
        return process, pipe

    @contextlib.contextmanager
    def _ended_by(self, kind: str) -> Iterator[None]:
        """Ends the process at a failure; `kind` is what an end of the pipe means."""
        try:
            yield
        except (EOFError, OSError):
            raise self._failed("stopped" if self._killed else kind) from None
        except WorkerFailure as failure:
            raise self._failed(failure.kind) from None

    def _failed(self, kind: str) -> WorkerFailure:
        self.failures[kind] += 1
        self.close()
        return WorkerFailure(kind)

    def close(self) -> None:
        """Ends the process; the next call starts another."""
        with self._lock:
            process, self._process = self._process, None
            pipe, self._pipe = self._pipe, None
            buffer, self._buffer = self._buffer, None
            self.is_ready = self._killed = False
        if process is not None and pipe is not None and buffer is not None:
            process.kill()
            process.join()
            pipe.close()
            buffer.close()


def _answer(pipe: Connection, seconds: float, give_way: GiveWay | None = None) -> tuple[str, Message]:
    """Returns what the process says of a call. Raises WorkerFailure after so many seconds, or when the call is to give
    way, EOFError at the process's end."""
    until = time.monotonic() + seconds
    if give_way is not None and give_way.after < seconds and not pipe.poll(give_way.after):
        while not pipe.poll(LOOK_SECONDS) and time.monotonic() < until:
            if give_way.is_due():
                raise WorkerFailure(POSTPONED)
    if not pipe.poll(max(0.0, until - time.monotonic())):
        raise WorkerFailure("timeout")
    kind, message = pipe.recv()
    if kind == OUT_OF_MEMORY:
        raise WorkerFailure("memory")
    return kind, message
