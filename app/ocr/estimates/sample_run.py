"""Reads a sample of pages by a job, and notes when each was done.

The first pages wait for an engine that captures its graphs, which takes seconds once: in a large sample they are a job
of their own.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.documents.naming import Document
from vlm_app.ocr.estimates.sampling import divided, page_range
from vlm_app.ocr.events import LOOP, Event, PageFailed, PageRead, Reader, Work
from vlm_app.ocr.job import Job
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.measures import Interval
from vlm_app.ocr.outputs import Outputs
from vlm_app.ocr.report import Summary

TIMED_FROM = 4  # times the slots: a smaller sample would not see the engines full without its first pages


@dataclass
class SampledPage:
    """What came of a page."""

    document: int
    page: int  # from 0
    until: float  # seconds after the begin, when its first answer came
    tokens: list[int] = field(default_factory=list)  # of each attempt
    is_bad: bool = False  # it failed, or repeats itself after the attempts so far
    loops: bool = False


@dataclass(frozen=True)
class Sample:
    """Pages in the order in which they were done."""

    pages: Sequence[SampledPage]
    seconds: float  # of the first attempts at those that are timed, from the begin to the end
    slots: int  # pages that are read at once
    summary: Summary
    num_untimed: int = 0  # of the pages: the first ones, which a cold engine read
    first_seconds: float = 0.0  # that these took, kernels compiled

    @property
    def timed(self) -> slice:
        return slice(self.num_untimed, len(self.pages))

    @property
    def steady(self) -> slice:
        """Returns the timed pages between the first filling of the engines and their running empty; none of a small
        sample."""
        first = self.num_untimed + self.slots
        return slice(first, max(first, len(self.pages) - self.slots))

    @property
    def is_steady(self) -> bool:
        return len(self.pages[self.steady]) >= self.slots

    @property
    def span(self) -> Interval:
        """Returns what was measured while the steady part was read, or all of it where there is none."""
        if self.is_steady:
            begin, end = self.pages[self.steady.start - 1].until, self.pages[self.steady][-1].until
            if (span := self.summary.series.between(begin, end)).seconds:
                return span
        return self.summary.series.whole()


class SampleRun:
    """Reads pages of documents (by index, from 0) by jobs whose ledgers and outputs are thrown away."""

    def __init__(self, reader: Reader, config: JobConfig, slots: int, on_progress: Callable[[int, int], None]):
        """`on_progress` is told how many pages are done, and of how many."""
        self._reader, self._config, self._slots, self._on_progress = reader, config, slots, on_progress

    def read(self, documents: Sequence[Document], drawn: Mapping[int, Sequence[int]]) -> Sample:
        """Raises what ends a job before its end."""
        total = sum(map(len, drawn.values()))
        first, rest = divided(drawn, self._slots if total >= TIMED_FROM * self._slots else 0)
        noted = NotedReader(self._reader, self._config, lambda done: self._on_progress(done, total))
        untimed = self._job(noted, documents, first) if first else Summary()
        num_untimed, first_seconds = len(noted.pages), noted.seconds if first else 0.0
        summary = self._job(noted, documents, rest)
        summary.failures, summary.retries = untimed.failures + summary.failures, untimed.retries + summary.retries
        return Sample(noted.pages, noted.seconds, self._slots, summary, num_untimed, first_seconds)

    def _job(self, noted: NotedReader, documents: Sequence[Document], drawn: Mapping[int, Sequence[int]]) -> Summary:
        chosen = [replace(documents[index], pages=page_range(pages)) for index, pages in drawn.items()]
        noted.begin({documents[index].source: index for index in drawn})
        with (
            tempfile.TemporaryDirectory(prefix="vlm-estimate-") as folder,
            contextlib.closing(Ledger(Path(folder, "ledger", "ledger.sqlite"))) as ledger,
        ):
            summary = Job(noted, chosen, self._config, ledger, Outputs(Path(folder), self._config.format, ledger)).run()
        if summary.interrupted:
            raise KeyboardInterrupt
        if summary.stopped:
            raise summary.stopped
        return summary


class NotedReader:
    """Notes what another reader says of pages, and when."""

    def __init__(self, reader: Reader, config: JobConfig, on_page: Callable[[int], None]):
        self.engines, self.measures = reader.engines, reader.measures
        self._reader, self._config, self._on_page = reader, config, on_page
        self._pages: dict[tuple[int, int], SampledPage] = {}
        self.begin({})

    def begin(self, indices: Mapping[Path, int]) -> None:
        """Begins with a job, whose documents have these numbers to whoever asks for the sample."""
        self._indices, self._index_of = indices, dict[int, int]()  # the latter by number in the job's ledger
        self._since, self._compiled = time.perf_counter(), self.measures().compile_seconds
        self.seconds = 0.0  # of the first attempts; the next job finds its kernels compiled

    @property
    def pages(self) -> list[SampledPage]:
        """Returns the pages in the order in which they were first done."""
        return list(self._pages.values())

    def read(self, works: Iterable[Work], sampling: Mapping[str, Any], limit: int | None = None) -> Iterator[Event]:
        is_first = sampling == self._config.sampling(0)
        for event in self._reader.read(self._numbered(works), sampling, limit):
            if isinstance(event, PageRead | PageFailed):
                self._note(event, is_first)
            yield event
        if is_first:
            self.seconds = self._now() - (self.measures().compile_seconds - self._compiled)

    def close(self) -> None:
        self._reader.close()

    def _numbered(self, works: Iterable[Work]) -> Iterator[Work]:
        for work in works:
            self._index_of[work.document] = self._indices[work.path]
            yield work

    def _note(self, event: PageRead | PageFailed, is_first: bool) -> None:
        place = (self._index_of[event.document], event.page)
        page = self._pages.setdefault(place, SampledPage(*place, until=self._now()))
        if is_first:
            page.tokens.clear()  # what took long is asked for again
        page.tokens.append(event.tokens if isinstance(event, PageRead) else 0)
        page.loops = isinstance(event, PageRead) and event.finish_reason == LOOP
        page.is_bad = page.loops or isinstance(event, PageFailed)
        self._on_page(len(self._pages))

    def _now(self) -> float:
        """Returns the seconds since the job began."""
        return time.perf_counter() - self._since
