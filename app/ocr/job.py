"""A batch job: pages of many documents through one pipeline, the engine kept full, memory bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from app.ocr import writers
from app.ocr.sources import OpenDocument, PageInput, Target, open_pages
from app.ocr.writers import Draft
from vlm.errors import VlmError

if TYPE_CHECKING:
    from vlm.pipeline import Output, Pipeline


@dataclass(frozen=True)
class JobConfig:
    """What is read of each document and how it is written."""

    format: str = "md"
    pages: str | None = None  # "1-4,7"; None: all
    max_new_tokens: int | None = None  # a page
    overwrite: bool = False


@dataclass(frozen=True)
class Failure:
    """A page (from 1), or a whole document, that could not be read."""

    document: Path
    page: int | None
    reason: str


@dataclass
class Summary:
    """What a job did."""

    done: int = 0  # documents that the job is through with, whatever came of them
    documents: int = 0  # written
    skipped: int = 0  # their output was there
    pages: int = 0  # read
    tokens: int = 0
    failures: list[Failure] = field(default_factory=list)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    partial: list[Path] = field(default_factory=list)  # of documents that were interrupted
    interrupted: bool = False


class Job:
    """Reads documents; `run` may be interrupted (KeyboardInterrupt) and keeps what is finished."""

    def __init__(
        self,
        pipeline: Pipeline,
        targets: list[Target],
        config: JobConfig,
        on_progress: Callable[[Summary], None] = lambda summary: None,
    ):
        self.pipeline, self.targets, self.config, self.on_progress = pipeline, targets, config, on_progress
        self.summary = Summary()
        self._under_way: dict[int, tuple[Draft, int]] = {}  # index of an input -> its document and page
        self._drafts: dict[Path, Draft] = {}

    def run(self) -> Summary:
        """Failed pages and documents are in the summary; VlmError only for what stops the job (a full disk)."""
        sampling = {"max_new_tokens": self.config.max_new_tokens}
        try:
            for index, result in self.pipeline.as_completed(self._pages(), on_error="yield", **sampling):
                self._take(*self._under_way.pop(index), result)
        except KeyboardInterrupt:
            self.summary.interrupted = True
        finally:
            self._keep_partial()
        return self.summary

    def _pages(self) -> Iterator[PageInput]:
        """Inputs in order; documents are opened as the pipeline gets to them."""
        count = 0
        for target in self.targets:
            opened = self._open(target)
            if opened is None:
                continue
            document, pages = opened
            draft = self._drafts[target.out] = Draft(target, pages)
            for page in pages:
                self._under_way[count] = (draft, page)
                count += 1
                yield PageInput(document, page)

    def _open(self, target: Target) -> tuple[OpenDocument, list[int]] | None:
        if target.out.exists() and not self.config.overwrite:
            self.summary.skipped += 1
            self.summary.done += 1
            return None
        try:
            return open_pages(target.source, self.config.pages)
        except VlmError as error:
            self.summary.failures.append(Failure(target.source, None, str(error)))
            self.summary.done += 1
            return None

    def _take(self, draft: Draft, page: int, result: Output | VlmError) -> None:
        draft.results[page] = result
        if isinstance(result, VlmError):
            self.summary.failures.append(Failure(draft.target.source, page + 1, str(result)))
        else:
            self.summary.pages += 1
            self.summary.tokens += len(result.token_ids)
            self.summary.finish_reasons[result.finish_reason] += 1
        if draft.whole:
            self._close(draft)
        self.on_progress(self.summary)

    def _close(self, draft: Draft) -> None:
        if draft.has_text:
            writers.write(draft, self.config.format)
            self.summary.documents += 1
        self.summary.done += 1
        del self._drafts[draft.target.out]

    def _keep_partial(self) -> None:
        """Finished pages of unfinished documents; after a job that ran to its end there are none."""
        for draft in self._drafts.values():
            if draft.has_text:
                self.summary.partial.append(writers.write_partial(draft, self.config.format))
        self._drafts.clear()
