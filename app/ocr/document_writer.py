"""Writes documents that a job is through with, and tells its summary what became of each."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vlm.errors import DocumentError, VlmError
from vlm_app.ocr import writers
from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.document_progress import DocumentProgress
from vlm_app.ocr.events import LOOP
from vlm_app.ocr.ledger.ledger import DONE, FAILED, LOOPED, Page
from vlm_app.ocr.outputs import Outputs
from vlm_app.ocr.report import Failure, Summary
from vlm_app.ocr.writers import Draft


class DocumentWriter:
    """Puts texts into the output folder: whole ones as documents are done, the others when a run ends."""

    def __init__(self, config: JobConfig, outputs: Outputs, summary: Summary):
        self._outputs, self._summary = outputs, summary
        self._text_of, self._max_error_rate = writers.WRITERS[config.format], config.max_page_error_rate

    def write(self, document: DocumentProgress, draft: Draft) -> None:
        """Writes a document whose pages all have their last answer; what concerns it alone is counted as its failure.
        Raises what concerns the whole folder."""
        self._count_pages(draft)
        try:
            document.check_unchanged()
            self._check_error_rate(draft)
            if draft.has_text:
                target = document.target
                self._outputs.write(document.number, target.name, self._text_of(draft), target.selection)
        except DocumentError as error:
            self._summary.fail(draft.source, error.kind, str(error))
        else:
            self._summary.documents += draft.has_text
            self._summary.failed += not draft.has_text  # its pages tell why

    def write_partial(self, documents: Iterable[DocumentProgress]) -> None:
        """Writes the finished pages of documents that are not done. Raises nothing: the pages stand in the ledger."""
        for document in documents:
            try:
                self._write_partial(document)
            except DocumentError as error:  # it stays unfinished
                self._summary.failures.append(Failure(document.target.source, None, str(error), error.kind))
            except VlmError as error:
                self._summary.stopped = self._summary.stopped or error
                break

    def _write_partial(self, document: DocumentProgress) -> None:
        draft, target = document.draft(), document.target
        # Ctrl-C may come when a document has just been written
        is_whole = self._outputs.is_current(document.number, target.name, target.selection)
        if draft.has_text and not is_whole:
            path = self._outputs.write_partial(document.number, target.name, self._text_of(draft))
            self._summary.partial.append(path)

    def _check_error_rate(self, draft: Draft) -> None:
        rate, limit = draft.error_rate, self._max_error_rate
        if draft.has_text and rate > limit:
            reason = f"{rate:.1%} of its pages are bad, allowed are {limit:.1%} (--max-page-error-rate)."
            raise DocumentError(reason, "error rate")

    def _count_pages(self, draft: Draft) -> None:
        for page in draft.pages_in_order:
            if page.state != FAILED:
                self._summary.finish_reasons[str(page.finish_reason)] += 1
            if page.state != DONE:
                self._summary.failures.append(failure_of(page, draft.source))


def failure_of(page: Page, source: Path) -> Failure:
    """Returns what is told of a bad page."""
    reason = writers.loop_notice(page) + "." if page.state == LOOPED else str(page.error)
    return Failure(source, page.page + 1, reason, LOOP if page.state == LOOPED else str(page.error_kind))
