"""Listens to a reader: what came of each page, and when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.events import LOOP, Event, PageFailed, PageRead, Reader, Work


@dataclass
class SampledPage:
    """What came of a page."""

    document: int
    page: int  # from 0
    until: float  # seconds after the begin, when its first answer came
    tokens: list[int] = field(default_factory=list)  # of each attempt
    is_bad: bool = False  # it failed, or repeats itself after the attempts so far
    loops: bool = False

    @property
    def is_failed(self) -> bool:
        """Says whether nothing was read of it."""
        return self.is_bad and not self.loops


class NotedReader:
    """Notes what another reader says of pages, and when."""

    def __init__(self, reader: Reader, config: JobConfig, on_page: Callable[[int], None]):
        self.engines, self.measures = reader.engines, reader.measures
        self._reader, self._config, self._on_page = reader, config, on_page
        self.pages: dict[tuple[int, int], SampledPage] = {}  # in the order in which they were first done
        self.begin({})

    def begin(self, indices: Mapping[Path, int]) -> None:
        """Begins with a job, whose documents have these numbers to whoever asks for the sample."""
        self._indices, self._index_of = indices, dict[int, int]()  # the latter by number in the job's ledger
        self._since, self._compiled = time.perf_counter(), self.measures().compile_seconds
        self.seconds = 0.0  # of the first attempts; the next job finds its kernels compiled

    def read(self, works: Iterable[Work], sampling: Mapping[str, Any], limit: int | None = None) -> Iterator[Event]:
        is_first = sampling == self._config.sampling(0)
        for event in self._reader.read(self._numbered(works), sampling, limit):
            if isinstance(event, PageRead | PageFailed):
                self._note(event, is_first=is_first)
            yield event
        if is_first:
            self.seconds = self._now() - (self.measures().compile_seconds - self._compiled)

    def close(self) -> None:
        self._reader.close()

    def _numbered(self, works: Iterable[Work]) -> Iterator[Work]:
        for work in works:
            self._index_of[work.document] = self._indices[work.path]
            yield work

    def _note(self, event: PageRead | PageFailed, *, is_first: bool) -> None:
        place = (self._index_of[event.document], event.page)
        page = self.pages.setdefault(place, SampledPage(*place, until=self._now()))
        if is_first:
            page.tokens.clear()  # what took long is asked for again
        page.tokens.append(event.tokens if isinstance(event, PageRead) else 0)
        page.loops = isinstance(event, PageRead) and event.finish_reason == LOOP
        page.is_bad = page.loops or isinstance(event, PageFailed)
        self._on_page(len(self.pages))

    def _now(self) -> float:
        """Returns the seconds since the job began."""
        return time.perf_counter() - self._since
