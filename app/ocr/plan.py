"""Which documents a run has to read, and where each one's text goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vlm.errors import DocumentError, VlmError
from vlm_app.core.storage import FileState, digest, key, regular_file_state
from vlm_app.ocr.documents.naming import PARTIAL, Document
from vlm_app.ocr.ledger.database import LedgerError
from vlm_app.ocr.ledger.ledger import FAILED, Ledger, Record
from vlm_app.ocr.outputs import OCCUPIED, Outputs


@dataclass(frozen=True)
class Target:
    """A document, and the name of its output for good: below the output folder, without suffix."""

    source: Path
    name: str
    pages: str | None  # to read; None: all

    @property
    def selection(self) -> str:
        return self.pages or "all"


class Plan:
    """Made before anything is read."""

    def __init__(self, ledger: Ledger, documents: list[Document], outputs: Outputs, pages: str | None, recompute: bool):
        self._ledger, self._documents, self._outputs, self._recompute = ledger, documents, outputs, recompute
        self._pages = pages
        self.due: dict[int, Target] = {}  # by number in the ledger
        self.num_skipped = 0
        self.current: dict[int, Path] = {}  # by number in the ledger; skipped, for the job has written the output
        self.refusals: list[tuple[Path, VlmError]] = []

    def make(self) -> None:
        """Enters all documents into the ledger at once: a run that goes on after a kill finds the same plan."""
        with self._ledger.at_once():
            for document in self._documents:
                try:
                    self._add(document)
                except LedgerError:
                    raise
                except VlmError as error:
                    self.refusals.append((document.source, error))

    def _add(self, document: Document) -> None:
        state, source = regular_file_state(document.source), key(document.source)
        record = self._ledger.find(source)
        pages = document.pages or self._pages
        if record is None and self._is_of_sibling(source, state, pages or "all"):
            self.num_skipped += 1
            return
        if record is None:
            name = self._new_name(document, may_be_there=self._recompute)
            number = self._ledger.register(source, state)
            self._ledger.set_name(number, name)
        else:
            number, name = record.id, record.name or self._late_name(record, document)
            self._bring_up(record, document.source, state)
        if self._recompute:
            self._outputs.take_over(number, name)
        target = Target(document.source, name, pages)
        if self._outputs.is_current(number, name, target.selection):
            self.num_skipped += 1
            self.current[number] = document.source
        else:
            self.due[number] = target

    def _is_of_sibling(self, source: str, state: FileState, selection: str) -> bool:
        return not self._recompute and self._outputs.is_of_sibling(source, state.stamp, selection)

    def _new_name(self, document: Document, *, may_be_there: bool) -> str:
        """Returns the best name that no other document has; DocumentError where a file is there that the job did not
        write."""
        for name in document.names:
            if not self._ledger.has_name(name) and self._outputs.can_be(name):
                if not may_be_there:
                    self._outputs.check_free(name)
                return name
        raise DocumentError(f"{document.source} has no output name that is free; give another --out.", OCCUPIED)

    def _late_name(self, record: Record, document: Document) -> str:
        """Names the output of a document of a run of an earlier version, which may have left a file that the ledger
        does not tell."""
        name = self._new_name(document, may_be_there=True)
        self._ledger.set_name(record.id, name)
        self._outputs.take_over(record.id, name + PARTIAL)
        return name

    def _bring_up(self, record: Record, source: Path, state: FileState) -> None:
        """Forgets what was read of another content, or is to be read again."""
        is_written = record.stamp != state.stamp
        # it may not be readable now: then the ledger keeps the stamp of what was read
        is_other = is_written and not self._recompute and record.digest != digest(source)
        if is_written:
            self._ledger.restamp(record.id, state)
        if self._recompute or is_other or self._all_failed(record):
            self._ledger.forget(record.id)

    def _all_failed(self, record: Record) -> bool:
        states = [state for state, _ in self._ledger.attempts(record.id).values()]
        return bool(states) and not self._ledger.is_written(record.id) and set(states) == {FAILED}
