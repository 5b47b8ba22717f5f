"""A batch job: documents go to a reader, their pages into the ledger, and whole documents into files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from vlm.errors import DocumentError, VlmError
from vlm_app.ocr import writers
from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.documents.naming import Document
from vlm_app.ocr.events import LOOP, Event, Opened, PageFailed, PageRead, Reader, Unreadable, Waiting, Work
from vlm_app.ocr.ledger.ledger import FAILED, LOOPED, Ledger, Page
from vlm_app.ocr.monitor import Monitor
from vlm_app.ocr.outputs import OCCUPIED, Outputs
from vlm_app.ocr.plan import Plan
from vlm_app.ocr.postponed import Postponed
from vlm_app.ocr.report import Failure, Summary
from vlm_app.ocr.writers import About, Draft


class Job:
    """Reads documents; `run` may be interrupted (KeyboardInterrupt) and keeps what is finished."""

    def __init__(
        self,
        reader: Reader,
        documents: list[Document],
        config: JobConfig,
        ledger: Ledger,
        outputs: Outputs,
        on_progress: Callable[[Summary], None] = lambda summary: None,
    ):
        self.reader, self.config, self.ledger = reader, config, ledger
        self.summary = Summary(engines=reader.engines, total=len(documents))
        self._monitor = Monitor(self.summary, reader, on_progress)
        self._outputs = outputs
        self._plan = Plan(ledger, documents, outputs, pages=config.pages, recompute=config.recompute)
        self._postponed = Postponed(self._plan, ledger)
        self._missing_pages: dict[int, set[int]] = {}  # document -> pages that this round has still to bring
        self._open_documents: set[int] = set()  # documents that were opened and are not done
        self._num_tried = 0  # pages of which this run had a first answer

    def run(self) -> Summary:
        """Reads all that is due. The summary holds failed pages and documents, and what stopped the job (a full
        disk)."""
        self._monitor.start()
        try:
            self._prepare()
            self._read(self._works(), 0, is_quick=True)
            self._read(self._postponed.works(), 0)
            for attempt in range(1, self.config.retries + 1):
                self._read(self._looped_works(attempt), attempt)
            self._end()
        except KeyboardInterrupt:
            self.summary.interrupted = True
        except VlmError as error:
            self.summary.stopped = error
        finally:
            self._keep_partial()
            self._monitor.end()
        return self.summary

    def _prepare(self) -> None:
        self._outputs.sweep()
        self._plan.make()
        self.summary.skipped = self._plan.num_skipped
        for source, error in self._plan.refusals:
            self._fail(source, error.kind, str(error))

    def _read(self, works: Iterator[Work], attempt: int, is_quick: bool = False) -> None:
        """Reads works, if there are any; what takes long in a quick round is postponed."""
        if (first := next(works, None)) is None:
            return
        limit = None if attempt or self.config.limit is None else self.config.limit - self._num_tried
        for event in self.reader.read(itertools.chain([first], works), self.config.sampling(attempt), limit):
            if is_quick and self._postponed.takes(event):
                continue
            self._num_tried += not attempt and isinstance(event, PageRead | PageFailed)
            self.summary.retries += attempt > 0 and isinstance(event, PageRead | PageFailed)
            with self._monitor.clock("write"):
                self._take(event, attempt)
            self._monitor.tell()

    def _end(self) -> None:
        """Tells why documents are still due: the limit has been reached, or a reader lost pages of them."""
        self.summary.is_limited = bool(self._plan.due) and self._num_tried == self.config.limit
        for target in () if self.summary.is_limited else self._plan.due.values():
            self._fail(target.source, "unfinished", "some pages were lost; run the same command again.")

    def _works(self) -> Iterator[Work]:
        """Yields documents of which pages are due, as the reader gets to them."""
        for document in list(self._plan.due):
            done_pages = self._plan.done_pages(document)
            self.summary.ledger_pages += len(done_pages)
            if self._plan.is_read(document, done_pages):
                self._settle(document)
            else:
                target = self._plan.due[document]
                yield Work(document, target.source, target.pages, done_pages, is_quick=True)

    def _looped_works(self, attempt: int) -> Iterator[Work]:
        for document in list(self._plan.due):
            if pages := self._looped(document, attempt):
                self._missing_pages[document] = set(pages)
                yield Work(document, self._plan.due[document].source, ",".join(str(page + 1) for page in pages))

    def _looped(self, document: int, attempts: int) -> list[int]:
        """Returns pages that have looped so many times; none of a document that has pages which were never tried."""
        pages, states = self.ledger.record(document).pages or (), self.ledger.attempts(document)
        if not states.keys() >= set(pages):
            return []
        return sorted(page for page in pages if states[page] == (LOOPED, attempts))

    # --- events ---
    def _take(self, event: Event, attempt: int) -> None:
        if isinstance(event, Waiting) or event.document not in self._plan.due:  # given up meanwhile
            return
        if isinstance(event, Opened):
            self._opened(event, attempt)
        elif isinstance(event, Unreadable):
            self._unreadable(event, attempt)
        else:
            self._page(event, attempt)

    def _opened(self, event: Opened, attempt: int) -> None:
        if attempt:
            return
        try:
            self._plan.check_goes_on(event)
        except DocumentError as error:
            self._fail(self._plan.due.pop(event.document).source, error.kind, str(error))
            return
        self.ledger.opened(event, self._plan.due[event.document].pages)
        self._open_documents.add(event.document)
        missing = self._missing_pages[event.document] = set(event.pages) - self.ledger.attempts(event.document).keys()
        if not missing:
            self._settle(event.document)

    def _unreadable(self, event: Unreadable, attempt: int) -> None:
        if attempt:  # it was readable before: what was read stands
            self.ledger.exhaust(event.document, self.config.retries + 1)
            self._settle(event.document)
            return
        self.ledger.unreadable(event)
        self._fail(self._plan.due.pop(event.document).source, event.kind, event.reason)

    def _page(self, event: PageRead | PageFailed, attempt: int) -> None:
        if isinstance(event, PageRead):
            self.ledger.page_read(event)
            self.summary.tokens += event.tokens
            self.summary.pages += not attempt
        else:
            self.ledger.page_failed(event)
        if not attempt and (isinstance(event, PageFailed) or event.finish_reason == LOOP):
            self.summary.bad_pages += 1
        missing = self._missing_pages[event.document]
        missing.discard(event.page)
        if not missing:
            self._settle(event.document)

    # --- documents ---
    def _settle(self, document: int) -> None:
        """Writes a document whose pages all have an answer, unless some are to be tried again."""
        self._missing_pages.pop(document, None)
        draft = self._draft(document)
        self._open_documents.add(document)
        if not any(page.state == LOOPED and page.attempts <= self.config.retries for page in draft.pages_in_order):
            self._close(document, draft)

    def _close(self, document: int, draft: Draft) -> None:
        self._count(draft)
        try:
            self._plan.check_unchanged(document)
            self._check_error_rate(draft)
            if draft.has_text:
                self._write(document, draft)
        except DocumentError as error:
            self._fail(draft.source, error.kind, str(error))
        else:
            self.summary.documents += draft.has_text
            self.summary.failed += not draft.has_text  # its pages tell why
        del self._plan.due[document]
        self._open_documents.discard(document)

    def _check_error_rate(self, draft: Draft) -> None:
        rate, limit = draft.error_rate, self.config.max_page_error_rate
        if draft.has_text and rate > limit:
            reason = f"{rate:.1%} of its pages are bad, allowed are {limit:.1%} (--max-page-error-rate)."
            raise DocumentError(reason, "error rate")

    def _write(self, document: int, draft: Draft) -> None:
        text, target = writers.WRITERS[self.config.format](draft), self._plan.due[document]
        self._outputs.write(document, target.name, text, target.selection)

    def _draft(self, document: int) -> Draft:
        record, source = self.ledger.record(document), self._plan.due[document].source
        date, model = self.ledger.get("added") or "", self.ledger.get("model") or ""
        about = About(record.digest or "", record.num_pages or 0, record.created, date=date, model=model)
        return Draft(source, record.pages or (), self.ledger.pages(document), about)

    def _count(self, draft: Draft) -> None:
        for page in draft.pages_in_order:
            if page.state != FAILED:
                self.summary.finish_reasons[str(page.finish_reason)] += 1
            if page.state != "done":
                self.summary.failures.append(_failure(draft, page))

    def _fail(self, source: Path, kind: str, reason: str) -> None:
        self.summary.failures.append(Failure(source, None, reason, kind))
        if kind == OCCUPIED:
            self.summary.refused += 1
        else:
            self.summary.failed += 1

    def _keep_partial(self) -> None:
        """Writes the finished pages of unfinished documents; after a job that ran to its end there are none."""
        for document in sorted(self._open_documents):
            try:
                self._write_partial(document)
            except VlmError as error:  # the pages stand in the ledger
                self.summary.stopped = self.summary.stopped or error
                break
        self._open_documents.clear()

    def _write_partial(self, document: int) -> None:
        draft = self._draft(document)
        if draft.has_text:
            text, name = writers.WRITERS[self.config.format](draft), self._plan.due[document].name
            self.summary.partial.append(self._outputs.write_partial(document, name, text))


def _failure(draft: Draft, page: Page) -> Failure:
    reason = writers.loop_notice(page) + "." if page.state == LOOPED else str(page.error)
    return Failure(draft.source, page.page + 1, reason, LOOP if page.state == LOOPED else str(page.error_kind))
