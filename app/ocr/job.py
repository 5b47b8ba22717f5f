"""A batch job: documents go to a reader, their pages into the ledger, and whole documents into files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from vlm.errors import DocumentError, VlmError
from vlm.interrupts import Terminated
from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.document_progress import DocumentProgress
from vlm_app.ocr.document_writer import DocumentWriter, failure_of
from vlm_app.ocr.documents.naming import Document
from vlm_app.ocr.events import LOOP, TIMEOUT, Event, Opened, PageFailed, PageRead, Reader, Unreadable, Waiting, Work
from vlm_app.ocr.ledger.ledger import LOOPED, Ledger
from vlm_app.ocr.monitor import Monitor
from vlm_app.ocr.outputs import Outputs
from vlm_app.ocr.plan import Plan
from vlm_app.ocr.report import Summary


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
        self._outputs, self._writer = outputs, DocumentWriter(config, outputs, self.summary)
        self._plan = Plan(ledger, documents, outputs, pages=config.pages, recompute=config.recompute)
        self._due: dict[int, DocumentProgress] = {}  # by number in the ledger; a document that is done leaves it
        self._num_tried = 0  # pages of which this run had a first answer

    def run(self) -> Summary:
        """Reads all that is due. The summary holds failed pages and documents, and what stopped the job (a full
        disk)."""
        self._monitor.start()
        try:
            self._prepare()
            self._read(self._first_works(), 0, is_quick=True)
            self._read(self._postponed_works(), 0)
            for attempt in range(1, self.config.retries + 1):
                self._read(self._looped_works(attempt), attempt)
            self._end()
        except KeyboardInterrupt as interrupt:
            self.summary.interrupted, self.summary.terminated = True, isinstance(interrupt, Terminated)
        except VlmError as error:
            self.summary.stopped = error
        finally:
            self._writer.write_partial(document for _, document in sorted(self._due.items()) if document.is_begun)
            self._monitor.end()
        return self.summary

    def _prepare(self) -> None:
        self._outputs.sweep()
        self._plan.make()
        self.summary.skipped = self._plan.num_skipped
        for source, error in self._plan.refusals:
            self.summary.fail(source, error.kind, str(error))
        self._tell_of_skipped()
        self._due = {number: DocumentProgress(number, each, self.ledger) for number, each in self._plan.due.items()}

    def _tell_of_skipped(self) -> None:
        """Tells of pages that earlier runs could not read, of documents whose outputs are there."""
        for number, page in self.ledger.bad_pages():
            source = self._plan.current.get(number)
            if source is not None and page.page in (self.ledger.record(number).pages or ()):
                self.summary.failures.append(failure_of(page, source))

    def _read(self, works: Iterator[Work], attempt: int, *, is_quick: bool = False) -> None:
        """Reads works, if there are any; what takes long in a quick round is postponed."""
        if (first := next(works, None)) is None:
            return
        limit = None if attempt or self.config.limit is None else self.config.limit - self._num_tried
        for event in self.reader.read(itertools.chain([first], works), self.config.sampling(attempt), limit):
            if is_quick and self._postpones(event):
                continue
            self._num_tried += not attempt and isinstance(event, PageRead | PageFailed)
            self.summary.retries += attempt > 0 and isinstance(event, PageRead | PageFailed)
            with self._monitor.clock("write"):
                self._take(event, attempt)
            self._monitor.tell()

    def _end(self) -> None:
        """Tells why documents are still due: the limit has been reached, or a reader lost pages of them."""
        self.summary.is_limited = bool(self._due) and self._num_tried == self.config.limit
        for document in () if self.summary.is_limited else self._due.values():
            reason = "some pages were lost; run the same command again."
            self.summary.fail(document.target.source, "unfinished", reason)

    # --- rounds: works are made as the reader gets to them ---
    def _first_works(self) -> Iterator[Work]:
        for document in list(self._due.values()):
            done_pages = document.done_pages
            self.summary.ledger_pages += len(done_pages)
            if work := document.first_work(done_pages):
                yield work
            else:
                self._settle(document)

    def _postponed_works(self) -> Iterator[Work]:
        """Yields what took long at first: it has all the time that there is, and holds up no others. Pages that are
        known come first: a limit has room for these."""
        late = [document for document in self._due.values() if document.is_postponed]
        for document in sorted(late, key=lambda document: not document.is_begun):
            yield document.postponed_work()

    def _looped_works(self, attempts: int) -> Iterator[Work]:
        for document in list(self._due.values()):
            if work := document.looped_work(attempts):
                yield work

    # --- events ---
    def _postpones(self, event: Event) -> bool:
        """Leaves a page, or a document, that took too long to a later round; says whether it was one."""
        if not isinstance(event, Unreadable | PageFailed) or event.kind != TIMEOUT or event.document not in self._due:
            return False
        self._due[event.document].postpone(event)
        return True

    def _take(self, event: Event, attempt: int) -> None:
        if isinstance(event, Waiting) or event.document not in self._due:  # given up meanwhile
            return
        document = self._due[event.document]
        if isinstance(event, Opened):
            self._opened(document, event, attempt)
        elif isinstance(event, Unreadable):
            self._unreadable(document, event, attempt)
        else:
            self._page(document, event, attempt)

    def _opened(self, document: DocumentProgress, event: Opened, attempt: int) -> None:
        try:
            document.check_content(event) if attempt else document.open(event)
        except DocumentError as error:
            self._give_up(document, error.kind, str(error))
            return
        if event.num_attachments:
            self.summary.attachments[document.target.source] = event.num_attachments
        if document.has_all:
            self._settle(document)

    def _unreadable(self, document: DocumentProgress, event: Unreadable, attempt: int) -> None:
        if attempt:  # it was readable before: what was read stands
            document.end_attempts(self.config.retries + 1)
            self._settle(document)
            return
        self.ledger.unreadable(event)
        self._give_up(document, event.kind, event.reason)

    def _page(self, document: DocumentProgress, event: PageRead | PageFailed, attempt: int) -> None:
        document.take(event)
        if isinstance(event, PageRead):
            self.summary.tokens += event.tokens
            self.summary.pages += not attempt
        if not attempt and (isinstance(event, PageFailed) or event.finish_reason == LOOP):
            self.summary.bad_pages += 1
        if document.has_all:
            self._settle(document)

    def _settle(self, document: DocumentProgress) -> None:
        """Writes a document whose pages all have an answer, unless some are to be tried again."""
        draft = document.draft()
        if not any(page.state == LOOPED and page.attempts <= self.config.retries for page in draft.pages_in_order):
            self._writer.write(document, draft)
            del self._due[document.number]

    def _give_up(self, document: DocumentProgress, kind: str, reason: str) -> None:
        del self._due[document.number]
        self.summary.fail(document.target.source, kind, reason)
