"""Measures one pipeline at work, from the thread that reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vlm_app.ocr.measures import Measures, Queues, added

if TYPE_CHECKING:
    from vlm.api.pipeline import Output, Pipeline
    from vlm.errors import VlmError
    from vlm_app.ocr.documents.pages import Renderer
    from vlm_app.ocr.measures import Seconds


class Meter:
    """Tells where a pipeline's pages are and what its device did. CPU seconds stand in its clock and the renderer's."""

    def __init__(self, pipeline: Pipeline, renderer: Renderer):
        self._pipeline, self._renderer, self._workers = pipeline, renderer, renderer.ahead
        self._device: Seconds = {}  # in the calls before this one
        self._in_call = False

    def watched(self, results: Iterator[tuple[int, Output | VlmError]]) -> Iterator[tuple[int, Output | VlmError]]:
        """Yields the results of a call. What they cost this thread goes to the stage `decode`, but what has a stage of
        its own."""
        try:
            while (result := self._next(results)) is not None:
                self._in_call = True
                yield result
        finally:
            self._device, self._in_call = self._device_seconds(), False

    def measures(self) -> Measures:
        stages = added(self._pipeline.clock.seconds(), self._renderer.clock.seconds())
        compiled = self._pipeline.compile_seconds
        return Measures(stages, self._device_seconds(), compile_seconds=compiled, engines=1, queues=self._queues())

    def _next(self, results: Iterator[tuple[int, Output | VlmError]]) -> tuple[int, Output | VlmError] | None:
        with self._pipeline.clock("decode"):
            return next(results, None)

    def _device_seconds(self) -> Seconds:
        return added(self._device, self._pipeline.device_seconds) if self._in_call else self._device

    def _queues(self) -> Queues:
        feed, usage = self._pipeline.feed, self._pipeline.usage()
        slots = self._pipeline.capabilities.max_batch_size
        if feed is None or usage is None:
            return Queues(self._workers, slots)
        ready = feed.num_prepared + usage.waiting
        return Queues(self._workers, slots, preparing=feed.num_preparing, ready=ready, running=usage.running)
