"""How a job went over its time: intervals of about a second, fewer and longer ones as the job gets long."""

from __future__ import annotations

from collections import deque
from functools import reduce
from operator import add

from vlm_app.ocr.measures import Interval, Measures

MOST = 600  # intervals that are kept
SECONDS = 1.0  # between samples
RECENT = 10  # samples


class TimeSeries:
    """Intervals of a job, made of samples of what it has done so far."""

    def __init__(self, most: int = MOST):
        self.intervals: list[Interval] = []
        self._recent: deque[Interval] = deque(maxlen=RECENT)
        self._most, self._step = most, SECONDS
        self._last = Interval(until=0.0, seconds=0.0)

    def is_due(self, seconds: float) -> bool:
        """Says whether it is time for a sample, so long after the job's begin."""
        return seconds - self._last.until >= SECONDS

    def sample(self, seconds: float, pages: int, tokens: int, measures: Measures) -> None:
        """Notes what has been done `seconds` after the begin; the first sample counts from there on."""
        last, self._last = self._last, Interval(seconds, seconds, pages, tokens, measures)
        if seconds <= last.until:
            return
        length, costs = seconds - last.until, measures.since(last.measures)
        interval = Interval(seconds, length, pages - last.pages, tokens - last.tokens, costs)
        self._recent.append(interval)
        if self.intervals and self._belongs_to_last(length):
            interval = self.intervals.pop() + interval
        self.intervals.append(interval)
        if len(self.intervals) > self._most:
            self._thin_out()

    def recent(self) -> Interval:
        """Returns the last seconds as one interval; one of no length before the first sample."""
        return _joined(self._recent)

    def between(self, begin: float, end: float) -> Interval:
        """Returns the intervals that lie between two moments as one; one of no length where none does."""
        return _joined([each for each in self.intervals if begin <= each.until - each.seconds and each.until <= end])

    def whole(self) -> Interval:
        """Returns the job so far as one interval; one of no length before the first sample."""
        return _joined(self.intervals)

    def _belongs_to_last(self, seconds: float) -> bool:
        """Says whether the last interval is not complete without as many seconds more, or these are the job's rest: too
        few to tell a rate."""
        return self.intervals[-1].seconds + seconds / 2 < self._step or seconds < SECONDS / 2

    def _thin_out(self) -> None:
        """Joins intervals by twos."""
        pairs = (self.intervals[i : i + 2] for i in range(0, len(self.intervals), 2))
        self.intervals = [reduce(add, pair) for pair in pairs]
        self._step *= 2


def _joined(intervals: deque[Interval] | list[Interval]) -> Interval:
    return reduce(add, intervals) if intervals else Interval(until=0.0, seconds=0.0)
