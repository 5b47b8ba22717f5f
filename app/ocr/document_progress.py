"""Where one document stands in a job, from the moment that it is due until it is done."""

from __future__ import annotations

from dataclasses import replace

from vlm.errors import DocumentError, InputError
from vlm_app.core.renamed import sentence_with_flags
from vlm_app.core.storage import digest, file_state, is_remote
from vlm_app.ocr.events import Opened, PageFailed, PageRead, Unreadable, Work
from vlm_app.ocr.ledger.ledger import LOOPED, Ledger
from vlm_app.ocr.plan import Target
from vlm_app.ocr.writers import About, Draft


class DocumentProgress:
    """A document that is due. What came of its pages stands in the ledger alone, which a kill leaves whole; what a
    round has still to bring is kept here."""

    __slots__ = ("_ledger", "_missing", "_postponed", "number", "target")  # there may be a million of them

    def __init__(self, number: int, target: Target, ledger: Ledger):
        self.number, self.target, self._ledger = number, target, ledger
        self._missing: set[int] | None = None  # pages that the round has still to bring; None: it is not known which
        self._postponed: set[int] | None = None  # pages that took too long at first; none of it: to open it did

    @property
    def is_begun(self) -> bool:
        """Says whether this run knows its pages: when the run ends before it is done, it has a partial text."""
        return self._missing is not None

    @property
    def is_postponed(self) -> bool:
        """Says whether it, or a page of it, took longer than the quick round allows."""
        return self._postponed is not None

    @property
    def has_all(self) -> bool:
        """Says whether the round has brought all that was asked of it."""
        return self._missing is not None and not self._missing

    @property
    def done_pages(self) -> frozenset[int]:
        """Returns the pages (from 0) that have an answer, of this run or an earlier one."""
        return frozenset(self._ledger.attempts(self.number))

    # --- what is asked of a reader ---
    def first_work(self, done_pages: frozenset[int]) -> Work | None:
        """Returns what an earlier run, which has done these pages, has left to read; None: nothing, so that it need not
        be opened."""
        record = self._ledger.record(self.number)
        is_selected = record.pages is not None and record.selection == self.target.pages
        if is_selected and done_pages.issuperset(record.pages or ()):
            self._missing = set()
            return None
        return self._work(done_pages, is_quick=True)

    def postponed_work(self) -> Work:
        """Returns what took too long in the quick round; pages that lie behind a limit are not asked for."""
        if not self._postponed:
            return self._work(self.done_pages)
        return self._work(frozenset(self._ledger.record(self.number).pages or ()) - self._postponed)

    def looped_work(self, attempts: int) -> Work | None:
        """Returns the pages that have looped so many times, unless others of them were never tried."""
        pages, states = self._ledger.record(self.number).pages or (), self._ledger.attempts(self.number)
        if not states.keys() >= set(pages):
            return None
        if not (looped := {page for page in pages if states[page] == (LOOPED, attempts)}):
            return None
        self._missing = looped
        return Work(self.number, self.target.source, ",".join(str(page + 1) for page in sorted(looped)))

    def _work(self, done_pages: frozenset[int], *, is_quick: bool = False) -> Work:
        return Work(self.number, self.target.source, self.target.pages, done_pages, is_quick=is_quick)

    # --- what a reader answers ---
    def postpone(self, event: PageFailed | Unreadable) -> None:
        """Keeps what took too long for a round that has all the time that there is."""
        self._postponed = self._postponed or set()
        if isinstance(event, PageFailed):
            self._postponed.add(event.page)

    def open(self, event: Opened) -> None:
        """Takes over which pages it has. Raises as `check_content` does."""
        self.check_content(event)
        self._ledger.opened(event, self.target.pages)
        self._missing = set(event.pages) - self.done_pages

    def check_content(self, event: Opened) -> None:
        """Raises DocumentError where known pages are of another content than the one that has been opened."""
        if self._ledger.record(self.number).digest not in (None, event.digest) and self.done_pages:
            raise self._changed("since it was found")

    def take(self, event: PageRead | PageFailed) -> None:
        """Writes what came of a page into the ledger."""
        if isinstance(event, PageRead):
            self._ledger.page_read(event)
        else:
            reason = sentence_with_flags(event.reason, event.settings)
            self._ledger.page_failed(replace(event, reason=reason))
        if self._missing:
            self._missing.discard(event.page)

    def end_attempts(self, attempts: int) -> None:
        """Leaves looped pages as they were read: they cannot be opened any more."""
        self._ledger.exhaust(self.number, attempts)
        self._missing = set()

    # --- its text ---
    def draft(self) -> Draft:
        """Returns what the ledger has of it."""
        record = self._ledger.record(self.number)
        date, model = self._ledger.get("added") or "", self._ledger.get("model") or ""
        about = About(record.digest or "", record.num_pages or 0, record.created, date=date, model=model)
        return Draft(self.target.source, record.pages or (), self._ledger.pages(self.number), about)

    def check_unchanged(self) -> None:
        """Raises DocumentError for a file that was written while it was read: its pages may be of two contents."""
        record, source = self._ledger.record(self.number), self.target.source
        if is_remote(source):  # it was read from a copy
            return
        try:
            is_same = file_state(source).stamp == record.stamp or digest(source) == record.digest
        except InputError:  # gone, and read before
            return
        if not is_same:
            raise self._changed("while it was read")

    def _changed(self, when: str) -> DocumentError:
        """Forgets what was read of another content."""
        self._ledger.forget(self.number)
        reason = f"{self.target.source} has changed {when}; run the same command again."
        return DocumentError(reason, "changed")
