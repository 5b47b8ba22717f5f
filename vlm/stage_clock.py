"""Where CPU time goes: seconds of threads, by the stage of the work that they are at."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class StageClock:
    """Adds up what each stage costs, in whatever threads it runs. A stage within another one is not counted twice."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._thread = threading.local()

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Counts the CPU seconds of this thread until the block ends."""
        outer, self._thread.inner = getattr(self._thread, "inner", 0.0), 0.0
        began = time.thread_time()
        try:
            yield
        finally:
            spent = time.thread_time() - began
            self.add({stage: spent - self._thread.inner})
            self._thread.inner = outer + spent

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds seconds that were measured elsewhere, by stage."""
        with self._lock:
            for stage, value in seconds.items():
                self._seconds[stage] += value

    def seconds(self) -> dict[str, float]:
        """Returns CPU seconds by stage so far."""
        with self._lock:
            return dict(self._seconds)
