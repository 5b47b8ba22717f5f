"""Small work on many things in a pool of threads: a task does several, as to start one costs more than a text takes."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")

# of a pool at most: more wait for Python's lock, of which an engine needs its share (32 pictures of 640x360 had their
# first tokens after 269 ms with eight threads, 247 with four)
THREADS = 4


class Outcome(NamedTuple, Generic[R]):
    """What a function returned, or raised."""

    value: Any = None
    error: BaseException | None = None

    @classmethod
    def of(cls, function: Callable[[T], R], value: T) -> Outcome[R]:
        """Calls the function, whatever it raises."""
        try:
            return cls(function(value))
        except BaseException as error:  # of a thread: raised again where the outcome is taken
            return cls(error=error)

    def result(self) -> R:
        """Returns the value, or raises the error."""
        if self.error is not None:
            raise self.error
        return self.value


class PooledMap(Generic[T, R]):
    """Applies a function to values that have an index each; outcomes are taken in the order that they come in."""

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        function: Callable[[T], R],
        most: int = 1,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
        together: Callable[[list[T]], Callable[[T], R]] | None = None,
    ):
        """`most`: values that one task may have: of short work, of which who waits for it does a part; `within`: what
        each task is done in; `together` returns what does the same as `function` for the values of one task, with what
        they share done already. Where it raises, `function` says what is wrong with each."""
        self._pool, self._most, self._within = pool, most, within
        self._function, self._together = function, together
        self._finished: queue.SimpleQueue[list[tuple[int, Outcome[R]]]] = queue.SimpleQueue()  # a task's
        self._tasks: deque[Sequence[tuple[int, T]]] = deque()  # not begun
        self._own_waits = False  # is there a task that no thread was asked for, but who waits is to do?
        self._begun, self._ended, self._taken = 0, 0, 0
        self._lock = threading.Lock()  # of what begins and ends: any thread may hand values in

    @property
    def num_ready(self) -> int:
        """Returns how many outcomes wait to be taken."""
        return self._ended - self._taken

    @property
    def num_under_way(self) -> int:
        """Returns how many outcomes are yet to be taken, ready or not."""
        return self._begun - self._taken

    def begin(self, values: Sequence[tuple[int, T]], *, awaited: bool = False) -> None:
        """Hands values to the threads; short work waits for who takes it, or for `work_beside`. One alone, of which the
        caller takes the outcome next (`awaited`), it makes itself: no thread is woken."""
        is_own = awaited and len(values) == 1 and not self.num_under_way
        with self._lock:
            self._begun += len(values)
        size = max(1, min(self._most, -(-len(values) // THREADS)))  # so that who takes the first can begin with it
        tasks = [values[first : first + size] for first in range(0, len(values), size)]
        self._tasks.extend(tasks)
        if self._most == 1 and not is_own:
            for _ in tasks:
                self._pool.submit(self._run_next)
        self._own_waits = self._own_waits or is_own

    def work_beside(self) -> None:
        """Has short work done that nobody waits for yet. One thread does: it holds Python's lock, for which others
        would wait, as does who has something else to do."""
        if self._most > 1 and self._tasks:
            self._pool.submit(self._run_all)

    def take(self, timeout: float | None = None) -> list[tuple[int, Outcome[R]]]:
        """Waits for the next task's outcomes. Raises queue.Empty where none comes within `timeout` seconds."""
        while (self._most > 1 or self._own_waits) and self._finished.empty() and self._run_next():
            self._own_waits = False
        outcomes = self._finished.get(timeout=timeout)
        self._taken += len(outcomes)
        return outcomes

    def close(self) -> None:
        """Drops what has not begun."""
        self._tasks.clear()

    def _function_of(self, values: list[T]) -> Callable[[T], R]:
        if self._together is not None:
            with suppress(Exception):
                return self._together(values)
        return self._function

    def _run_all(self) -> None:
        while self._run_next():
            pass

    def _run_next(self) -> bool:
        """Does a task, in whatever thread; says whether there was one."""
        try:
            values = self._tasks.popleft()
        except IndexError:
            return False
        with self._within():
            function = self._function_of([value for _, value in values])
            outcomes = [(index, Outcome.of(function, value)) for index, value in values]
        with self._lock:
            self._ended += len(values)
        self._finished.put(outcomes)  # at once: each would wake who waits, and let them wait for Python's lock again
        return True
