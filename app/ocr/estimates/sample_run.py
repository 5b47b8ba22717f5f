"""Reads a sample of pages by a job, and notes when each was done.

The first pages wait for an engine that captures its graphs, which takes seconds once: in a large sample they are a job
of their own.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.documents.naming import Document
from vlm_app.ocr.estimates.noted_reader import NotedReader, SampledPage
from vlm_app.ocr.estimates.sampling import first_of, page_range, without
from vlm_app.ocr.events import Reader
from vlm_app.ocr.job import Job
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.measures import Interval
from vlm_app.ocr.outputs import Outputs
from vlm_app.ocr.report import Failure, Summary

MIN_SECONDS = 10.0  # of a sample, where there are pages enough
TIMED_FROM = 4  # times the slots: a smaller sample would not see the engines full without its first pages


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
    def is_brief(self) -> bool:
        """Says whether it was read too quickly: workers were ahead for most of it, as they are at a job's begin."""
        return self.seconds < MIN_SECONDS

    @property
    def pages_for_long_enough(self) -> int:
        """Returns how many pages a sample needs that is not brief."""
        return round(len(self.pages) * MIN_SECONDS / self.seconds * 1.25)

    @property
    def span(self) -> Interval:
        """Returns what was measured while the steady part was read, or all of it where there is none."""
        if self.is_steady:
            begin, end = self.pages[self.steady.start - 1].until, self.pages[self.steady][-1].until
            if (span := self.summary.series.between(begin, end)).seconds:
                return span
        return self.summary.series.whole()


@dataclass(frozen=True)
class FirstPages:
    """What came of the pages that cold engines read, by document and page."""

    pages: Mapping[tuple[int, int], SampledPage] = field(default_factory=dict)
    seconds: float = 0.0  # of the first attempts
    failures: list[Failure] = field(default_factory=list)
    retries: int = 0


class SampleRun:
    """Reads pages of documents (by index, from 0) by jobs whose ledgers and outputs are thrown away."""

    def __init__(self, reader: Reader, config: JobConfig, slots: int, on_progress: Callable[[int, int], None]):
        """`on_progress` is told how many pages are done, and of how many."""
        self._reader, self._config, self._slots, self._on_progress = reader, config, slots, on_progress
        self._first: FirstPages | None = None

    def read(self, documents: Sequence[Document], drawn: Mapping[int, Sequence[int]]) -> Sample:
        """Raises what ends a job before its end. A later sample, of more pages, finds the engines warm: the first pages
        are those of the first one."""
        total = sum(map(len, drawn.values()))
        noted = NotedReader(self._reader, self._config, lambda done: self._on_progress(done, total))
        if self._first is None:
            count = self._slots if total >= TIMED_FROM * self._slots else 0
            self._first = self._read_first(noted, documents, first_of(drawn, count))
        else:
            noted.pages.update(self._first.pages)
        first = self._first
        summary = self._job(noted, documents, without(drawn, first.pages))
        summary.failures, summary.retries = first.failures + summary.failures, first.retries + summary.retries
        pages = list(noted.pages.values())
        return Sample(pages, noted.seconds, self._slots, summary, len(first.pages), first.seconds)

    def _read_first(
        self, noted: NotedReader, documents: Sequence[Document], drawn: Mapping[int, Sequence[int]]
    ) -> FirstPages:
        if not drawn:
            return FirstPages()
        summary = self._job(noted, documents, drawn)
        return FirstPages(dict(noted.pages), noted.seconds, summary.failures, summary.retries)

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
