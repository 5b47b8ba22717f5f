"""Reads a sample of pages as a job would, and notes when each was done; nothing is written.

The first pages compile kernels and capture graphs, which takes seconds once: in a large sample they are not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.documents.naming import Document
from vlm_app.ocr.estimates.sampling import divided, work
from vlm_app.ocr.events import LOOP, Event, PageFailed, PageRead, Reader, Unreadable
from vlm_app.ocr.measures import Interval
from vlm_app.ocr.monitor import Monitor
from vlm_app.ocr.report import Failure, Summary

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
    num_untimed: int = 0  # of the pages: the first ones

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
    """Reads pages of documents (by index, from 0) with a job's retries."""

    def __init__(self, reader: Reader, config: JobConfig, slots: int, on_progress: Callable[[Summary], None]):
        self._reader, self._config, self._slots = reader, config, slots
        self._summary = Summary(engines=reader.engines)
        self._monitor = Monitor(self._summary, reader, on_progress)
        self._pages: dict[tuple[int, int], SampledPage] = {}

    def read(self, documents: Sequence[Document], drawn: Mapping[int, Sequence[int]]) -> Sample:
        self._summary.total = sum(map(len, drawn.values()))
        first, rest = divided(drawn, self._slots if self._summary.total >= TIMED_FROM * self._slots else 0)
        self._monitor.start()
        if first:
            self._round(documents, first, attempt=0)
            self._monitor.start()  # again
        num_untimed = len(self._pages)
        self._round(documents, rest, attempt=0)
        seconds = self._summary.seconds
        for attempt in range(1, self._config.retries + 1):
            if looped := self._looped():
                self._round(documents, looped, attempt)
        return Sample(list(self._pages.values()), seconds, self._slots, self._summary, num_untimed)

    def _round(self, documents: Sequence[Document], drawn: Mapping[int, Sequence[int]], attempt: int) -> None:
        works = (work(index, documents[index], pages) for index, pages in drawn.items())
        for event in self._reader.read(works, self._config.sampling(attempt)):
            self._monitor.tell()
            self._take(event, documents, attempt)
        self._monitor.end()

    def _take(self, event: Event, documents: Sequence[Document], attempt: int) -> None:
        if isinstance(event, Unreadable):
            self._summary.failures.append(Failure(documents[event.document].source, None, event.reason, event.kind))
        if not isinstance(event, PageRead | PageFailed):
            return
        place = (event.document, event.page)
        page = self._pages.setdefault(place, SampledPage(*place, until=self._summary.seconds))
        self._summary.pages += not attempt
        self._summary.retries += attempt > 0
        page.tokens.append(event.tokens if isinstance(event, PageRead) else 0)
        self._summary.tokens += page.tokens[-1]
        page.loops = isinstance(event, PageRead) and event.finish_reason == LOOP
        page.is_bad = page.loops or isinstance(event, PageFailed)

    def _looped(self) -> dict[int, list[int]]:
        looped: dict[int, list[int]] = {}
        for page in self._pages.values():
            if page.loops:
                looped.setdefault(page.document, []).append(page.page)
        return looped
