"""Watches a job from its own thread: its time, what it costs, and who is told of its progress."""

from __future__ import annotations

import time
from collections.abc import Callable

from vlm.stage_clock import StageClock
from vlm_app.ocr.events import Reader
from vlm_app.ocr.measures import Measures
from vlm_app.ocr.report import Summary


class Monitor:
    """Keeps a summary's time and time series. `clock` takes what the job itself costs."""

    def __init__(self, summary: Summary, reader: Reader, on_progress: Callable[[Summary], None]):
        self.clock = StageClock()
        self._summary, self._reader, self._on_progress = summary, reader, on_progress
        self._since = 0.0

    def start(self) -> None:
        """Begins to take the time; what the reader did before is no part of the series."""
        self._since = time.perf_counter()
        self._sample()

    def tell(self) -> None:
        """Tells of the progress, which is sampled now and then."""
        self._summary.seconds = time.perf_counter() - self._since
        if self._summary.series.is_due(self._summary.seconds):
            self._sample()
        self._on_progress(self._summary)

    def end(self) -> None:
        self._summary.seconds = time.perf_counter() - self._since
        self._sample()
        self._on_progress(self._summary)

    def _sample(self) -> None:
        summary, own = self._summary, Measures(self.clock.seconds(), retries=self._summary.retries)
        summary.series.sample(summary.seconds, summary.pages, summary.tokens, self._reader.measures() + own)
