"""What the last call of a pipeline took."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from vlm.executor.timing import DeviceTimer
from vlm.requests.token_update import Completion
from vlm.stage_clock import StageClock


class CallTimings:
    """Seconds since a call has begun, and the tokens that came of it."""

    def __init__(self, device: DeviceTimer, clock: StageClock):
        """`device` measures the engine's work, `clock` what this process does to inputs and outputs."""
        self._device, self._clock = device, clock
        self._counting = threading.Lock()  # of the threads that prepare inputs
        self.begin()

    def begin(self) -> None:
        """Forgets the call before."""
        self._device.reset()
        self._preprocess_seconds, self._tokens = 0.0, 0
        self._started, self._ended = time.perf_counter(), None

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """Counts what a thread prepares within its block."""
        start = time.perf_counter()
        with self._clock("prepare"):
            yield
        seconds = time.perf_counter() - start
        with self._counting:
            self._preprocess_seconds += seconds

    def count(self, completion: Completion) -> None:
        """Counts what a request has come to."""
        self._tokens += len(completion.token_ids)
        self._ended = time.perf_counter()

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each stage, and the tokens; waits for the device."""
        device = self._device.totals()
        seconds = {name: device.get(name, 0.0) for name in ("encode", "prefill", "decode")}
        total = (self._ended or time.perf_counter()) - self._started
        return {"preprocess": self._preprocess_seconds, **seconds, "total": total, "tokens": self._tokens}
