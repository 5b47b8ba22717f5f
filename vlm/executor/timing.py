"""Where device time goes, without waiting for the device while it works."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceTimer:
    """Adds up seconds by name: between CUDA events on a GPU, by the clock on the CPU."""

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
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
        self._pending.append((name, begin, end))
        if len(self._pending) > 256:
            self._fold(self._pending[:128])
            del self._pending[:128]

    def totals(self) -> dict[str, float]:
        """Returns the seconds by name so far; waits for what is under way."""
        self._fold(self._pending)
        self._pending.clear()
        return dict(self._seconds)

    def finished(self) -> dict[str, float]:
        """Returns the seconds by name of what the device is through with; waits for nothing."""
        count = next((i for i, (_, _, end) in enumerate(self._pending) if not end.query()), len(self._pending))
        self._fold(self._pending[:count])
        del self._pending[:count]
        return dict(self._seconds)

    def _fold(self, pairs: list[tuple[str, torch.cuda.Event, torch.cuda.Event]]) -> None:
        for name, begin, end in pairs:
            end.synchronize()
            self._seconds[name] += begin.elapsed_time(end) / 1e3
