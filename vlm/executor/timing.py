"""Where device time goes, without waiting for the device while it works."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

MOST_PENDING = 256  # spans: the device is through with the older ones


class DeviceTimer:
    """Adds up seconds by name: between CUDA events on a GPU, by the clock on the CPU. One thread is timed; any may ask
    what it has come to."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._pending: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if not self._cuda:
            start = time.perf_counter()
            yield
            self._seconds[name] += time.perf_counter() - start
            return
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        with self._lock:
            self._pending.append((name, begin, end))
            if len(self._pending) > MOST_PENDING:
                self._fold(MOST_PENDING // 2)

    def totals(self) -> dict[str, float]:
        """Returns the seconds by name so far; waits for what is under way."""
        with self._lock:
            return self._fold(len(self._pending))

    def finished(self) -> dict[str, float]:
        """Returns the seconds by name of what the device is through with; waits for nothing."""
        with self._lock:
            count = next((i for i, (_, _, end) in enumerate(self._pending) if not end.query()), len(self._pending))
            return self._fold(count)

    def _fold(self, count: int) -> dict[str, float]:
        """Adds up the first pending spans, once the device is through with them; returns all that is added up."""
        for name, begin, end in self._pending[:count]:
            end.synchronize()
            self._seconds[name] += begin.elapsed_time(end) / 1e3
        del self._pending[:count]
        return dict(self._seconds)
