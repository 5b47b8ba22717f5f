"""Prepares inputs ahead of the engine."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Prefetch:
    """Prepares inputs in worker threads, at most `window` of them under way or unanswered.

    An input may be a Future of one: no thread waits for it, and one that is long in coming holds up no other.
    One that is cancelled is no input.
    """

    def __init__(
        self, pool: ThreadPoolExecutor, source: Iterator[tuple[int, Any]], prepare: Callable[[Any], Any], window: int
    ):
        self._pool, self._source, self._prepare, self._room = pool, source, prepare, window
        self._prepared: queue.SimpleQueue[tuple[int, Future[Any]]] = queue.SimpleQueue()
        self._under_way: dict[int, Future[Any]] = {}  # inputs and preparations, by index
        self._exhausted = self._closed = False
        self._fill()

    @property
    def more(self) -> bool:
        return bool(self._under_way) or not self._exhausted

    @property
    def num_prepared(self) -> int:
        """Returns how many inputs wait to be taken."""
        return self._prepared.qsize()

    @property
    def num_preparing(self) -> int:
        return len(self._under_way) - self.num_prepared

    def ready(self, block: bool) -> list[tuple[int, Future[Any]]]:
        """Returns inputs as they are prepared; waits for one when `block`."""
        self._fill()
        inputs: list[tuple[int, Future[Any]]] = []
        while self._under_way and ((block and not inputs) or not self._prepared.empty()):
            index, future = self._prepared.get()
            del self._under_way[index]
            if future.cancelled():
                self._room += 1
            else:
                inputs.append((index, future))
        return inputs

    def done(self) -> None:
        """Notes that one input has been answered: there is room for another."""
        self._room += 1

    def close(self) -> None:
        """Drops what has not begun."""
        self._closed = True
        for future in list(self._under_way.values()):
            future.cancel()

    def _fill(self) -> None:
        for index, value in itertools.islice(self._source, self._room):
            self._begin(index, value)
            self._room -= 1
        self._exhausted = self._room > 0

    def _begin(self, index: int, value: Any) -> None:
        if not isinstance(value, Future):
            self._submit(index, self._prepare, value)
            return
        self._under_way[index] = value
        value.add_done_callback(lambda value: self._arrived(index, value))

    def _arrived(self, index: int, value: Future[Any]) -> None:
        if value.cancelled():
            self._prepared.put((index, value))
        else:
            self._submit(index, lambda: self._prepare(value.result()))

    def _submit(self, index: int, function: Callable[..., Any], *arguments: Any) -> None:
        if self._closed:
            return
        future = self._under_way[index] = self._pool.submit(function, *arguments)
        future.add_done_callback(lambda future: self._prepared.put((index, future)))
