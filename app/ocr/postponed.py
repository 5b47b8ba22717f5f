"""Pages that took long at first: they hold up no others, and are read with all the time that there is when these are
done."""

from __future__ import annotations

from collections.abc import Iterator

from vlm_app.ocr.events import TIMEOUT, Event, PageFailed, Unreadable, Work
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.plan import Plan


class Postponed:
    """Takes what a quick round gives up for its time."""

    def __init__(self, plan: Plan, ledger: Ledger):
        self._plan, self._ledger = plan, ledger
        self._pages: dict[int, set[int]] = {}  # document -> pages; none where it could not be opened

    def takes(self, event: Event) -> bool:
        """Keeps a page, or a document, that took too long; says whether it was one."""
        if not isinstance(event, Unreadable | PageFailed) or event.kind != TIMEOUT:
            return False
        pages = self._pages.setdefault(event.document, set())
        if isinstance(event, PageFailed):
            pages.add(event.page)
        return True

    def works(self) -> Iterator[Work]:
        """Yields what is left to read, first the pages that are known: a limit has room for these."""
        for document, pages in sorted(self._pages.items(), key=lambda item: not item[1]):
            if target := self._plan.due.get(document):
                yield Work(document, target.source, target.pages, self._done_pages(document, pages))

    def _done_pages(self, document: int, postponed: set[int]) -> frozenset[int]:
        """Returns the pages that are not to be read, also those that lie behind a limit."""
        if not postponed:
            return self._plan.done_pages(document)
        return frozenset(self._ledger.record(document).pages or ()) - postponed
