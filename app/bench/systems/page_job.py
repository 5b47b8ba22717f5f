"""The job of `vlm ocr` as a benchmark runs it: the same reader, ledger and outputs, in scratch folders."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import EngineError
from vlm_app.bench.pages.documents import Corpus
from vlm_app.bench.systems.inputs import FULL_LENGTH
from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.documents.naming import name_all
from vlm_app.ocr.documents.sources import find_documents
from vlm_app.ocr.job import Job
from vlm_app.ocr.ledger.state import ledger_of
from vlm_app.ocr.outputs import Outputs
from vlm_app.ocr.report import Summary

if TYPE_CHECKING:
    from vlm_app.ocr.events import Reader
    from vlm_app.ocr.readers.engines import EngineConfig

WARM_UP_TOKENS = 64  # of a page, at most


@dataclass(frozen=True)
class FixedLength(JobConfig):
    """Pages of exactly `max_new_tokens`, whatever they say."""

    retries: int = 0

    def sampling(self, attempt: int) -> dict[str, Any]:
        return super().sampling(attempt) | FULL_LENGTH


@dataclass(frozen=True)
class PageJob:
    """Reads documents with an engine; each time the texts go to a new folder in `scratch`."""

    engine: EngineConfig
    max_new_tokens: int | None
    scratch: Path
    fixed_length: bool  # random weights never end

    @property
    def config(self) -> JobConfig:
        return (FixedLength if self.fixed_length else JobConfig)(max_new_tokens=self.max_new_tokens)

    def read(self, reader: Reader, corpus: Corpus, on_progress: Callable[[Summary], None] = lambda _: None) -> Summary:
        """Reads documents, from files to written markdown. Raises what stopped the job, and EngineError where pages are
        missing."""
        out = Path(tempfile.mkdtemp(dir=self.scratch))
        documents, config = name_all(find_documents([corpus.folder]).sources), self.config
        with ledger_of(out, self.engine.settings(self.max_new_tokens), recompute=False) as ledger:
            outputs = Outputs(out, config.format, ledger)
            job = Job(reader, documents, config, ledger=ledger, outputs=outputs, on_progress=on_progress)
            summary = job.run()
        self._check(summary, corpus)
        return summary

    def warm_up(self, reader: Reader, corpus: Corpus) -> float:
        """Reads documents with few tokens: what is done once only is done then. Returns the time.perf_counter of the
        first page."""
        first: list[float] = []

        def note(summary: Summary) -> None:
            if summary.pages and not first:
                first.append(time.perf_counter())

        tokens = min(self.max_new_tokens or WARM_UP_TOKENS, WARM_UP_TOKENS)
        dataclasses.replace(self, max_new_tokens=tokens).read(reader, corpus, note)
        return first[0]

    def _check(self, summary: Summary, corpus: Corpus) -> None:
        if summary.stopped:
            raise summary.stopped
        if summary.interrupted:
            raise KeyboardInterrupt
        if summary.pages != corpus.pages:
            reasons = [failure.reason for failure in summary.failures] or ["the job lost them"]
            raise EngineError(f"{corpus.pages - summary.pages} of {corpus.pages} pages were not read: {reasons[0]}")
        assert not self.fixed_length or summary.tokens == corpus.pages * (self.max_new_tokens or 0), summary.tokens
