"""One pipeline in this process as a reader: the engine, in a thread of its own, is kept full, and memory bounded."""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlm.errors import VlmError
from vlm_app.ocr.documents.pages import InProcess, Renderer, opening, selected
from vlm_app.ocr.events import Event, Opened, PageFailed, PageRead, Unreadable, Work
from vlm_app.ocr.measures import Measures
from vlm_app.ocr.readers.engine_thread import EngineThread, Put
from vlm_app.ocr.readers.meter import Meter

if TYPE_CHECKING:
    from PIL.Image import Image

    from vlm.api.pipeline import Output, Pipeline
    from vlm.requests.pixels import ImagePixels
    from vlm_app.ocr.readers.engines import EngineConfig


PULLED = 64  # works that the engine's thread finds: none is pulled while it waits
CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Taken:
    """The engine's thread has taken a work."""


class PipelineReader:
    """Documents are opened as the pipeline gets to them."""

    engines = 1

    def __init__(self, pipeline: Pipeline, renderer: Renderer | None = None):
        self.pipeline, self.renderer = pipeline, renderer or InProcess()
        self._meter = Meter(pipeline, self.renderer)
        self._measures = self._meter.measures()
        self._thread: EngineThread | None = None

    @classmethod
    def load(cls, engine: EngineConfig) -> PipelineReader:
        """Loads an engine on its first device. Raises what `vlm.load` raises."""
        renderer = engine.renderer()  # starts while the model loads
        try:
            return cls(engine.pipeline(), renderer)
        except BaseException:
            renderer.close()
            raise

    def read(self, works: Iterable[Work], sampling: Mapping[str, Any], limit: int | None = None) -> Iterator[Event]:
        """Yields events while the engine goes on in its own thread; works are pulled in this one."""
        inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        works = iter(works)
        for _ in range(PULLED):
            inbox.put(next(works, None))
        for event in self.events(iter(inbox.get, None), sampling, limit):
            if isinstance(event, Taken):
                inbox.put(next(works, None))
            else:
                yield event

    def events(
        self, works: Iterator[Work], sampling: Mapping[str, Any], limit: int | None = None
    ) -> Iterator[Event | Taken]:
        """Yields events, and of each work that it has been pulled: by the engine's thread."""
        thread = EngineThread(lambda put: self._run(works, sampling, limit, put), self.pipeline.device)
        self._thread = thread
        try:
            yield from thread
        finally:
            thread.stop()

    def measures(self) -> Measures:
        return self._measures

    def close(self) -> None:
        self.renderer.close()  # what the engine's thread may wait for
        if self._thread is not None:
            self._thread.stop()
            self._thread.join(CLOSE_SECONDS)
        self.pipeline.close()

    # --- in the engine's thread ---
    def _run(self, works: Iterator[Work], sampling: Mapping[str, Any], limit: int | None, put: Put) -> None:
        under_way: dict[int, tuple[int, int]] = {}  # index of an input -> document and page
        inputs = itertools.islice(self._inputs(works, under_way, put), limit)
        with contextlib.closing(self.pipeline.as_completed(inputs, on_error="yield", **sampling)) as results:
            for index, result in self._meter.watched(results):
                document, page = under_way.pop(index)
                self._measures = self._meter.measures()
                put(page_event(document, page, result))
        self._measures = self._meter.measures()

    def _inputs(
        self, works: Iterator[Work], under_way: dict[int, tuple[int, int]], put: Put
    ) -> Iterator[Future[Image | ImagePixels]]:
        count = 0
        for work, future in opening(self.renderer, _told(works, put)):
            try:
                document = future.result()
                pages = selected(work.pages, document.num_pages)
            except VlmError as error:
                put(Unreadable(work.document, error.kind, str(error)))
                continue
            put(Opened(work.document, document.num_pages, pages, document.digest))
            for page in pages:
                if page not in work.done_pages:
                    under_way[count] = (work.document, page)
                    count += 1
                    yield document.read(page)


def _told(works: Iterator[Work], put: Put) -> Iterator[Work]:
    for work in works:
        put(Taken())
        yield work


def page_event(document: int, page: int, result: Output | VlmError) -> PageRead | PageFailed:
    if isinstance(result, VlmError):
        return PageFailed(document, page, result.kind, str(result))
    return PageRead(
        document,
        page,
        result.text,
        raw_text=result.raw_text,
        finish_reason=result.finish_reason,
        tokens=len(result.token_ids),
    )
