"""One pipeline in this process as a reader, the engine kept full, memory bounded."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vlm.errors import VlmError
from vlm_app.ocr.documents.pages import InProcess, PageInput, Renderer, opening, selected
from vlm_app.ocr.events import Event, Opened, PageFailed, PageRead, Unreadable, Work
from vlm_app.ocr.measures import Measures
from vlm_app.ocr.readers.meter import Meter

if TYPE_CHECKING:
    from vlm.api.pipeline import Output, Pipeline
    from vlm_app.ocr.readers.engines import EngineConfig


class PipelineReader:
    """Documents are opened as the pipeline gets to them."""

    engines = 1

    def __init__(self, pipeline: Pipeline, renderer: Renderer | None = None):
        self.pipeline, self.renderer = pipeline, renderer or InProcess()
        self._meter = Meter(pipeline, self.renderer.ahead)

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
        events: deque[Event] = deque()  # of documents; they come with the next page
        under_way: dict[int, tuple[int, int]] = {}  # index of an input -> document and page
        inputs = itertools.islice(self._inputs(works, events, under_way), limit)
        results = self.pipeline.as_completed(inputs, on_error="yield", **sampling)
        for index, result in self._meter.watched(results):
            yield from _drained(events)
            document, page = under_way.pop(index)
            yield page_event(document, page, result)
        yield from _drained(events)

    def measures(self) -> Measures:
        return self._meter.measures()

    def close(self) -> None:
        self.renderer.close()
        self.pipeline.close()

    def _inputs(
        self, works: Iterable[Work], events: deque[Event], under_way: dict[int, tuple[int, int]]
    ) -> Iterator[PageInput]:
        count = 0
        for work, future in opening(self.renderer, works):
            try:
                with self.pipeline.clock("open"):
                    document = future.result()
                pages = selected(work.pages, document.num_pages)
            except VlmError as error:
                events.append(Unreadable(work.document, error.kind, str(error)))
                continue
            events.append(Opened(work.document, document.num_pages, pages, document.digest))
            for page in pages:
                if page not in work.done_pages:
                    under_way[count] = (work.document, page)
                    count += 1
                    yield PageInput(document, page)


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


def _drained(events: deque[Event]) -> Iterator[Event]:
    while events:
        yield events.popleft()
