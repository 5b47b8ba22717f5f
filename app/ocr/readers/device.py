"""A device of this machine: a process with an engine, seen from the process that hands out pages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from vlm.errors import EngineError, VlmError, counted
from vlm.interrupts import blocked_interrupts
from vlm_app.ocr.documents.pages import Pages
from vlm_app.ocr.events import Opened, PageFailed, PageRead, Unreadable, Waiting, Work
from vlm_app.ocr.measures import Measures
from vlm_app.ocr.readers.device_process import READY, ROUND_DONE, serve

if TYPE_CHECKING:
    from vlm_app.ocr.readers.engines import EngineConfig

AHEAD = 4  # times what an engine reads at once is handed out: twice that it prepares, the rest waits beside it
Place = tuple[int, int]  # the number of a document, and of the page in it (from 0)


@dataclass
class Device:
    """A process with an engine, and the pages that it has been handed."""

    name: str
    process: BaseProcess
    pipe: Connection
    most: int  # pages that it may hold
    pages: dict[Place, Pages] = field(default_factory=dict)  # not answered: their document, which stays open for them
    busy: bool = False  # in a round
    measures: Measures = field(default_factory=Measures)  # as it told last

    @classmethod
    def started(cls, context: SpawnContext, engine: EngineConfig, name: str) -> Device:
        pipe, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, engine, name), name=f"vlm-{name}")
        with blocked_interrupts():
            process.start()
        theirs.close()
        return cls(name, process, pipe, AHEAD * engine.batch_size)

    @property
    def has_room(self) -> bool:
        return len(self.pages) < self.most

    def begin(self, sampling: dict[str, Any]) -> None:
        """Begins a round, which `end` and the last answer end."""
        self.busy = True
        self.send(sampling)

    def hand_out(self, work: Work, document: Pages) -> None:
        """Hands it a chunk of a document's pages."""
        self.pages |= {(work.document, page): document for page in chunk_pages(work.pages)}
        self.send(work)

    def end(self) -> None:
        """Tells it that no more pages come in this round."""
        self.send(None)

    def take(self) -> Iterator[PageRead | PageFailed | Waiting]:
        """Waits for its next message, and yields what that says of pages that it holds; of none: that it goes on."""
        message = self.receive()
        if message == ROUND_DONE:
            self.busy = False
            self.pages.clear()
        elif isinstance(message, Measures):
            self.measures = message
            yield Waiting()
        elif isinstance(message, Opened):
            yield from self._lost(message)
        elif isinstance(message, Unreadable):  # it could be opened a moment ago
            for page in chunk_pages(message.pages):
                yield from self._failed(PageFailed(message.document, page, message.kind, message.reason))
        elif isinstance(message, PageFailed):
            yield from self._failed(message)
        elif self.pages.pop((message.document, message.page), None) is not None:
            yield message

    def _lost(self, opened: Opened) -> Iterator[PageFailed]:
        """Fails the pages that a document has no more: nothing will come of them, and they would take room for good."""
        reason = f"the document has {counted(opened.num_pages, 'page')} by now; run the same command again."
        for document, page in list(self.pages):
            if document == opened.document and page >= opened.num_pages:
                yield from self._failed(PageFailed(document, page, "changed", reason))

    def _failed(self, event: PageFailed) -> Iterator[PageFailed]:
        """Yields a failure of a page that it holds. Reasons name the document, not the local copy of a remote one."""
        if (document := self.pages.pop((event.document, event.page), None)) is not None:
            yield replace(event, reason=document.named(event.reason))

    def send(self, message: Any) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            raise self._gone() from None

    def receive(self) -> Any:
        """Raises a VlmError that it sends, and one for a process that has ended."""
        try:
            message = self.pipe.recv()
        except (EOFError, OSError):
            raise self._gone() from None
        if isinstance(message, VlmError):
            raise message
        assert message == READY or self.busy
        return message

    def stop(self) -> None:
        """Has its process end, which it does with its pipe."""
        self.pipe.close()

    def join(self) -> None:
        """Waits for the end of its process."""
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()

    def _gone(self) -> EngineError:
        self.process.join(5)
        return EngineError(
            f"the process of device {self.name} has ended (exit code {self.process.exitcode}); run the same command"
            " again to go on after the last page."
        )


def chunk_pages(pages: str | None) -> list[int]:
    """Returns the pages (from 0) that a chunk names."""
    assert pages is not None  # each does
    return [int(number) - 1 for number in pages.split(",")]
