"""Prepares inputs ahead of the engine."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from vlm.api.ahead.pooled import Outcome, PooledMap

CANCELLED = object()  # what becomes of an input that is a cancelled Future
SOON = 0.01  # seconds that others are waited for, once the first is there: pixel values that are ready come in those


class Prefetch:
    """Prepares inputs in worker threads, at most `window` of them under way or unanswered.

    An input may be a Future of one: no thread waits for it, and one that is long in coming holds up no other.
    One that is cancelled is no input.
    """

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        source: Iterator[tuple[int, Any]],
        prepare: Callable[[int, Any], Any],
        window: int,
        *,
        most: int = 1,
        within: Callable[[], AbstractContextManager[None]] = nullcontext,
        together: Callable[[list[Any]], Callable[[int, Any], Any]] | None = None,
    ):
        """`prepare` is given an input with its index. `most`: inputs that a thread prepares at once, `within` what it
        is given; where several, they are short work, which `ready` waits for: an engine that begins with all of them is
        sooner done than one that begins with the first. Of others it waits for what comes soon. `together` returns
        what does as `prepare`, for the inputs that a thread prepares at once."""
        self._source, self._room, self.most = source, window, most
        prepare_all = None if together is None else lambda pairs: partial(_prepared, together([v for _, v in pairs]))
        self._prepared = PooledMap[tuple[int, Any], Any](
            pool, partial(_prepared, prepare), most, within, together=prepare_all
        )
        self._first: deque[tuple[int, Any]] = deque()  # inputs that go before the others
        self._awaited: dict[int, Future[Any]] = {}  # inputs that are not there yet, by index
        self._lock = threading.Lock()  # of an input that comes: it is awaited, or under way, never both or neither
        self._exhausted = self._closed = False
        self.fill(awaited=True)

    @property
    def more(self) -> bool:
        return bool(self._num_to_come or self._first) or not self._exhausted

    @property
    def num_prepared(self) -> int:
        """Returns how many inputs wait to be taken."""
        return self._prepared.num_ready

    @property
    def num_awaited(self) -> int:
        """Returns how many inputs are not there yet."""
        return len(self._awaited)

    @property
    def num_preparing(self) -> int:
        return self._num_to_come - self.num_prepared

    @property
    def _num_to_come(self) -> int:
        """Returns how many inputs are yet to be taken, ready or not."""
        with self._lock:
            return self._prepared.num_under_way + len(self._awaited)

    def ready(self, *, block: bool, use: Callable[[Any], bool] | None = None) -> list[tuple[int, Outcome[Any]]]:
        """Returns the inputs that `coming` yields."""
        return [*itertools.chain.from_iterable(self.coming(block=block, use=use))]

    def coming(
        self, *, block: bool, use: Callable[[Any], bool] | None = None
    ) -> Generator[list[tuple[int, Outcome[Any]]], None, None]:
        """Yields inputs as they are prepared, those of one task together; waits for one when `block`. Each goes to
        `use` at once, which says whether there is time to wait for another one."""
        self.fill()
        if not block:
            self._prepared.work_beside()
        end: float | None = None  # of the wait for others
        any_taken = False
        with suppress(queue.Empty):
            while self._waits(block=block, any_taken=any_taken):
                taken = self._prepared.take(None if end is None else max(0.0, end - time.monotonic()))
                prepared = [(index, outcome) for index, outcome in taken if outcome.value is not CANCELLED]
                self._room += len(taken) - len(prepared)
                if not prepared:
                    continue
                any_taken = True
                have_time = [] if use is None else [one.error is None and use(one.value) for _, one in prepared]
                if self.most == 1 and (end is None or any(have_time)):
                    end = time.monotonic() + SOON
                yield prepared

    def put_first(self, inputs: Iterable[tuple[int, Any]]) -> None:
        """Adds inputs, with their indices, that are prepared before what the source has left."""
        self._first.extend(inputs)

    def done(self) -> None:
        """Notes that one input has been answered: there is room for another."""
        self._room += 1

    def close(self) -> None:
        """Drops what has not begun."""
        self._closed = True
        for future in list(self._awaited.values()):
            future.cancel()
        self._prepared.close()

    def _waits(self, *, block: bool, any_taken: bool) -> bool:
        if self._prepared.num_ready:
            return True
        if not block or not self._num_to_come:
            return False
        return not any_taken or self._prepared.num_under_way > 0

    def fill(self, *, awaited: bool = False) -> None:
        """Begins with what there is room for; `awaited`: who asks waits for it, and makes one that is alone itself."""
        begun: list[tuple[int, tuple[int, Any]]] = []
        for index, value in itertools.islice(itertools.chain(self._taken_first(), self._source), self._room):
            self._room -= 1
            if isinstance(value, Future):
                self._await(index, value)
            else:
                begun.append((index, (index, value)))
        self._exhausted = self._room > 0
        self._prepared.begin(begun, awaited=awaited and self._exhausted)

    def _taken_first(self) -> Iterator[tuple[int, Any]]:
        while self._first:
            yield self._first.popleft()

    def _await(self, index: int, value: Future[Any]) -> None:
        self._awaited[index] = value
        value.add_done_callback(lambda value: self._arrived(index, value))

    def _arrived(self, index: int, value: Future[Any]) -> None:
        with self._lock:
            del self._awaited[index]
            if not self._closed:
                self._prepared.begin([(index, (index, value))])
                self._prepared.work_beside()


def _prepared(prepare: Callable[[int, Any], Any], pair: tuple[int, Any]) -> Any:
    index, value = pair
    if not isinstance(value, Future):
        return prepare(index, value)
    return CANCELLED if value.cancelled() else prepare(index, value.result())
