"""What the stages of a page cost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

OPEN, DRAW, PROCESS = "open", "draw", "process"


class StageTimes:
    """Adds up CPU seconds by stage. Several threads may use it."""

    def __init__(self) -> None:
        self._seconds, self._lock = Counter[str](), threading.Lock()

    def add(self, seconds: Mapping[str, float]) -> None:
        """Adds what another process, or another clock, has measured."""
        with self._lock:
            self._seconds.update(seconds)

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Measures a stage in this thread."""
        begin = time.thread_time()
        try:
            yield
        finally:
            self.add({stage: time.thread_time() - begin})

    def total(self) -> Counter[str]:
        with self._lock:
            return Counter(self._seconds)
