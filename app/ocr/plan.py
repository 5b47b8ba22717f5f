"""Which documents a run has to read: those that the ledger, and the output folder, do not have already."""

from __future__ import annotations

from vlm.errors import VlmError
from vlm_app.ocr.ledger import FAILED, Ledger, Record
from vlm_app.ocr.sources import Target
from vlm_app.storage import Presence, Seen, digest, key, seen


class Plan:
    """Made before anything is read; `due` then shrinks as documents are done."""

    def __init__(self, ledger: Ledger, targets: list[Target], pages: str | None, recompute: bool):
        self._ledger, self._targets, self._pages, self._recompute = ledger, targets, pages, recompute
        self._present = Presence()
        self.due: dict[int, Target] = {}  # by number in the ledger
        self.skipped = 0
        self.unreachable: list[tuple[Target, VlmError]] = []

    def make(self) -> None:
        """Enters all documents into the ledger at once: a run that goes on after a kill finds the same plan."""
        with self._ledger.at_once():
            for target in self._targets:
                try:
                    self._add(target)
                except VlmError as error:
                    self.unreachable.append((target, error))

    def done(self, document: int) -> frozenset[int]:
        """Pages (from 0) of a due document that the ledger has."""
        return frozenset(self._ledger.attempts(document))

    def is_read(self, document: int, done: frozenset[int]) -> bool:
        """Are these pages all that are asked for, so that the document need not be opened?"""
        record = self._ledger.record(document)
        return record.pages is not None and record.selection == self._pages and done.issuperset(record.pages)

    def output(self, target: Target) -> str:
        """Which file holds which pages."""
        return f"{key(target.out)} {self._pages or 'all'}"

    def _add(self, target: Target) -> None:
        found, record = seen(target.source), self._ledger.find(key(target.source))
        there = not self._recompute and self._present(target.out)
        if record is None:
            if there:  # of somebody else: it stays
                self.skipped += 1
            else:
                self.due[self._ledger.register(key(target.source), found)] = target
            return
        self._bring_up(record, target, found)
        if there and self._ledger.record(record.id).written == self.output(target):
            self.skipped += 1
        else:
            self.due[record.id] = target

    def _bring_up(self, record: Record, target: Target, found: Seen) -> None:
        """Forgets what was read of another content, or is to be read again."""
        changed = record.stamp != found.stamp
        if changed:
            self._ledger.restamp(record.id, found)
        if self._recompute or (changed and record.digest != digest(target.source)) or self._all_failed(record):
            self._ledger.forget(record.id)

    def _all_failed(self, record: Record) -> bool:
        states = [state for state, _ in self._ledger.attempts(record.id).values()]
        return bool(states) and record.written is None and set(states) == {FAILED}
