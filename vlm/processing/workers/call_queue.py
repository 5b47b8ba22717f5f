"""Calls that wait for workers, in lanes: what is slow never has all of the workers, and what is quick hardly waits."""

from __future__ import annotations

import heapq
import itertools
import threading
from enum import IntEnum

from vlm.processing.workers.call import Call


class Lane(IntEnum):
    """What calls are, those that wait least first."""

    RENEWAL = 0  # which make workers ready again
    IMAGES = 1
    DOCUMENTS = 2  # small ones may take as long as the budget lasts
    POSTPONED = 3  # which were stopped for others


def lanes_of(worker: int, workers: int) -> tuple[Lane, ...]:
    """Returns the lanes that a worker serves, those that it prefers first.

    Half of the workers, the larger one, never run what has been postponed and prefer images; the others prefer
    documents, so that these have their turn however many images come.
    """
    if workers == 1:
        return tuple(Lane)
    if worker < (workers + 1) // 2:
        return Lane.RENEWAL, Lane.IMAGES, Lane.DOCUMENTS
    return Lane.RENEWAL, Lane.DOCUMENTS, Lane.IMAGES, Lane.POSTPONED


class CallQueue:
    """Holds calls until a worker takes them; for use by many threads. In a lane the lowest `order` is first, then who
    came first."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, list[tuple[int, int, Call]]] = {lane: [] for lane in Lane}
        self._count = itertools.count()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, call: Call, lane: Lane, order: int = 0) -> bool:
        """Says whether it is taken in: no call is after the queue was closed."""
        with self._changed:
            if not self._closed:
                heapq.heappush(self._lanes[lane], (order, next(self._count), call))
                self._changed.notify_all()  # not every worker serves every lane
            return not self._closed

    def take(self, lanes: tuple[Lane, ...]) -> Call | None:
        """Waits for a call of these lanes, of the first that has one; None: the queue is closed."""
        with self._changed:
            while not self._closed:
                if waiting := next((self._lanes[lane] for lane in lanes if self._lanes[lane]), None):
                    return heapq.heappop(waiting)[2]
                self._changed.wait()
            return None

    def has_any(self, lanes: tuple[Lane, ...]) -> bool:
        """Says whether somebody waits for a worker that serves these lanes."""
        with self._changed:
            waiting = [call for lane in lanes if lane is not Lane.RENEWAL for _, _, call in self._lanes[lane]]
            return not all(call.cancelled() for call in waiting)

    def close(self) -> list[Call]:
        """Lets no worker wait any more; returns the calls that nobody has taken."""
        with self._changed:
            self._closed = True
            left = [call for lane in self._lanes.values() for _, _, call in lane]
            for lane in self._lanes.values():
                lane.clear()
            self._changed.notify_all()
            return left
