"""Prepares inputs ahead of the engine."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor


class Prefetch:
    """Prepares inputs in worker threads, at most `window` of them under way or unanswered."""

    def __init__(self, pool: ThreadPoolExecutor, source: Iterator, prepare: Callable, window: int):
        self._pool, self._source, self._prepare, self._room = pool, source, prepare, window
        self._futures: deque[tuple[int, Future]] = deque()
        self._exhausted = False
        self._fill()

    @property
    def more(self) -> bool:
        return bool(self._futures) or not self._exhausted

    @property
    def num_prepared(self) -> int:
        """Returns how many inputs wait to be taken."""
        return sum(future.done() for _, future in self._futures)

    @property
    def num_preparing(self) -> int:
        return len(self._futures) - self.num_prepared

    def ready(self, block: bool) -> list[tuple[int, Future]]:
        """Returns prepared inputs in order; waits for one when `block`."""
        self._fill()
        inputs = []
        while self._futures and (self._futures[0][1].done() or (block and not inputs)):
            index, future = self._futures.popleft()
            future.exception()  # waits
            inputs.append((index, future))
        return inputs

    def done(self) -> None:
        """Notes that one input has been answered: there is room for another."""
        self._room += 1

    def close(self) -> None:
        for _, future in self._futures:
            future.cancel()

    def _fill(self) -> None:
        for index, value in itertools.islice(self._source, self._room):
            self._futures.append((index, self._pool.submit(self._prepare, value)))
            self._room -= 1
        self._exhausted = self._room > 0
