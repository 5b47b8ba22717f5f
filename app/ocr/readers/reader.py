"""One pipeline in this process as a reader: the engine, in a thread of its own, is kept full, and memory bounded."""

from __future__ import annotations

import contextlib
import itertools
import queue
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlm.errors import VlmError
from vlm_app.ocr.documents.pages import InProcess, Pages, Renderer, opened, opening
from vlm_app.ocr.events import Event, PageFailed, PageRead, Unreadable, Work
from vlm_app.ocr.measures import Measures
from vlm_app.ocr.readers.engine_thread import EngineThread, Put
from vlm_app.ocr.readers.meter import Meter
from vlm_app.ocr.readers.page_feed import PageFeed

if TYPE_CHECKING:
    from vlm.api.pipeline import Output, Pipeline
    from vlm_app.ocr.readers.engines import EngineConfig


PULLED = 64  # works that the feed finds: none is pulled while it waits
CLOSE_SECONDS = 10.0


@dataclass(frozen=True)
class Taken:
    """A work has been begun."""


class PipelineReader:
    """Documents are opened as the pipeline gets to them."""

    engines = 1

    def __init__(
        self,
        pipeline: Pipeline,
        renderer: Renderer | None = None,
        options: Mapping[str, Any] | None = None,
        words: Mapping[str, str] | None = None,
    ):
        """`options` of all reading: `sampling` changes from one to another; `words`: what is asked of each page."""
        self.pipeline, self.renderer, self._options = pipeline, renderer or InProcess(), options or {}
        self._words = words
        self._meter = Meter(pipeline, self.renderer)
        self._thread: EngineThread | None = None

    @classmethod
    def load(cls, engine: EngineConfig) -> PipelineReader:
        """Loads an engine on its first device. Raises what `vlm.load` raises."""
        renderer = engine.renderer()  # starts while the model loads
        try:
            return cls(engine.pipeline(), renderer, engine.adapter, engine.words)
        except BaseException:
            renderer.close()
            raise

    def read(self, works: Iterable[Work], sampling: Mapping[str, Any], limit: int | None = None) -> Iterator[Event]:
        """Yields events while the engine goes on in its own thread; works are pulled in this one."""
        inbox: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        works = iter(works)
        for _ in range(PULLED):
            inbox.put(next(works, None))
        try:
            for event in self.events(iter(inbox.get, None), sampling, limit):
                if isinstance(event, Taken):
                    inbox.put(next(works, None))
                else:
                    yield event
        finally:
            inbox.put(None)  # whoever waits for a work goes

    def events(
        self, works: Iterator[Work], sampling: Mapping[str, Any], limit: int | None = None
    ) -> Iterator[Event | Taken]:
        """Yields events, and of each work that it has been pulled: by the feed's thread."""
        thread = EngineThread(lambda put: self._run(works, sampling, limit, put), self.pipeline.device)
        self._thread = thread
        try:
            yield from thread
        finally:
            thread.stop()

    def measures(self) -> Measures:
        return self._meter.measures()

    def close(self) -> None:
        self.renderer.close()  # what the engine's thread may wait for
        if self._thread is not None:
            self._thread.stop()
            self.pipeline.stop()  # on a CPU a page may take longer than anybody waits for it
            self._thread.join(CLOSE_SECONDS)
        self.pipeline.close()

    # --- in the engine's thread ---
    def _run(self, works: Iterator[Work], sampling: Mapping[str, Any], limit: int | None, put: Put) -> None:
        pages, options = itertools.islice(self._pages(works, put, in_order=limit is not None), limit), self._options
        with (
            contextlib.closing(PageFeed(pages, self._words)) as feed,
            contextlib.closing(self.pipeline.as_completed(feed, on_error="yield", **options, **sampling)) as results,
        ):
            for number, result in self._meter.watched(results):
                put(page_event(*feed.pages.pop(number), result))

    # --- in the feed's thread ---
    def _pages(self, works: Iterator[Work], put: Put, *, in_order: bool) -> Iterator[tuple[int, int, Pages]]:
        """Yields the pages to read, of documents as they open."""
        for work, future in opening(self.renderer, _told(works, put), in_order=in_order):
            answer = opened(work, future)
            if isinstance(answer, Unreadable):
                put(answer)
                continue
            news, document = answer
            put(news)
            yield from ((work.document, page, document) for page in work.due(news.pages))


def _told(works: Iterator[Work], put: Put) -> Iterator[Work]:
    for work in works:
        put(Taken())
        yield work


def page_event(document: int, page: int, result: Output | VlmError) -> PageRead | PageFailed:
    if isinstance(result, VlmError):
        return PageFailed(document, page, result.kind, str(result), result.settings)
    return PageRead(
        document,
        page,
        result.text,
        raw_text=result.raw_text,
        finish_reason=result.finish_reason,
        tokens=len(result.token_ids),
    )
