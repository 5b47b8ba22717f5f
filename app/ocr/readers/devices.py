"""Several devices of one machine: a process with an engine on each, one ledger.

This process hands out documents in chunks of pages and receives what was read; a device that is faster gets more.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from operator import add
from typing import TYPE_CHECKING, Any

from vlm.errors import EngineError, VlmError
from vlm.interrupts import blocked_interrupts
from vlm_app.ocr.documents.pages import Pages, opening, selected
from vlm_app.ocr.documents.render_pool import RenderPool
from vlm_app.ocr.events import Event, Opened, PageFailed, PageRead, Reader, Unreadable, Waiting, Work
from vlm_app.ocr.measures import Measures
from vlm_app.ocr.readers.device_process import READY, ROUND_DONE, serve
from vlm_app.ocr.readers.reader import PipelineReader

if TYPE_CHECKING:
    from vlm_app.ocr.readers.engines import EngineConfig

CHUNK = 4  # pages handed out at once: few, so that the devices end together
AHEAD = 4  # times what an engine reads at once is handed out: twice that it prepares, the rest waits beside it
OPENERS = 2  # processes that open documents, a device


def load_reader(engine: EngineConfig) -> Reader:
    """Loads an engine on each of its devices. Raises what `vlm.load` raises."""
    return DeviceReader(engine, engine.devices) if len(engine.devices) > 1 else PipelineReader.load(engine)


class DeviceReader:
    """One engine a device. Raises what an engine raises that cannot be loaded."""

    def __init__(self, engine: EngineConfig, devices: tuple[str, ...]):
        self.engines = len(devices)
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._opener = RenderPool(OPENERS * len(devices))
        self._devices = [_Device.started(context, engine, name) for name in devices]
        self._documents: dict[int, Pages] = {}  # open: some of their pages are handed out
        try:
            for device in self._devices:
                device.receive()
        except BaseException:
            self.close()
            raise

    def read(self, works: Iterable[Work], sampling: Mapping[str, Any], limit: int | None = None) -> Iterator[Event]:
        for device in self._devices:
            device.begin(dict(sampling))
        for item in self._chunks(works, limit):
            if not isinstance(item, tuple):
                yield item
                continue
            work, document = item
            while not (device := min(self._devices, key=lambda each: each.num_pages)).has_room:
                yield from self._answers()
            self._documents[work.document] = document
            device.hand_out(work)
        for device in self._devices:
            device.send(None)
        while any(device.busy for device in self._devices):
            yield from self._answers()
        self._documents.clear()

    def measures(self) -> Measures:
        told = reduce(add, (device.measures for device in self._devices))
        return replace(told, engines=self.engines)  # some may not have told anything yet

    def close(self) -> None:
        self._opener.close()
        for device in self._devices:
            device.stop()

    def _chunks(self, works: Iterable[Work], limit: int | None) -> Iterator[tuple[Work, Pages] | Opened | Unreadable]:
        """Yields documents as chunks of their pages, each after the news that it is open."""
        for work, future in opening(self._opener, works):
            try:
                document = future.result()
                pages = selected(work.pages, document.num_pages)
            except VlmError as error:
                yield Unreadable(work.document, error.kind, str(error))
                continue
            yield Opened(work.document, document.num_pages, pages, document.digest)
            due = [page for page in pages if page not in work.done_pages][:limit]
            for start in range(0, len(due), CHUNK):
                numbers = ",".join(str(page + 1) for page in due[start : start + CHUNK])
                yield Work(work.document, document.local, numbers, is_quick=work.is_quick), document
            if limit is not None and not (limit := limit - len(due)):
                return

    def _answers(self) -> Iterator[Event]:
        """Waits for what the devices say next."""
        busy = [device for device in self._devices if device.busy]
        ready = wait([device.pipe for device in busy])
        for device in busy:
            if device.pipe in ready:
                for event in device.take():
                    yield self._renamed(event)
                    if not isinstance(event, Waiting):
                        self._release(event.document)

    def _renamed(self, event: PageRead | PageFailed | Waiting) -> PageRead | PageFailed | Waiting:
        """Reasons name the document, not the local copy of a remote one."""
        if not isinstance(event, PageFailed):
            return event
        return replace(event, reason=self._documents[event.document].named(event.reason))

    def _release(self, document: int) -> None:
        """Lets a document go of which nothing is handed out."""
        if not any(document in device.pages for device in self._devices):
            self._documents.pop(document, None)


@dataclass
class _Device:
    """A process with an engine, seen from here."""

    name: str
    process: BaseProcess
    pipe: Connection
    most: int  # pages that it may hold
    pages: dict[int, set[int]] = field(default_factory=dict)  # by document: handed out, not answered
    busy: bool = False  # in a round
    measures: Measures = field(default_factory=Measures)  # as it told last

    @classmethod
    def started(cls, context: Any, engine: EngineConfig, name: str) -> _Device:
        pipe, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, engine, name), name=f"vlm-{name}")
        with blocked_interrupts():
            process.start()
        theirs.close()
        return cls(name, process, pipe, AHEAD * engine.batch_size)

    @property
    def num_pages(self) -> int:
        return sum(map(len, self.pages.values()))

    @property
    def has_room(self) -> bool:
        return self.num_pages < self.most

    def begin(self, sampling: dict[str, Any]) -> None:
        self.busy = True
        self.send(sampling)

    def hand_out(self, work: Work) -> None:
        self.pages.setdefault(work.document, set()).update(_chunk_pages(work.pages))
        self.send(work)

    def take(self) -> Iterator[PageRead | PageFailed | Waiting]:
        """Yields the next message, as pages; what it has cost so far brings none."""
        message = self.receive()
        if message == ROUND_DONE:
            self.busy = False
            self.pages.clear()  # of a document that has fewer by now some have no answer
        elif isinstance(message, Measures):
            self.measures = message
            yield Waiting()
        elif isinstance(message, Unreadable):  # it could be opened a moment ago
            for page in _chunk_pages(message.pages):
                self._forget(message.document, page)
                yield PageFailed(message.document, page, message.kind, message.reason)
        elif isinstance(message, PageRead | PageFailed):
            self._forget(message.document, message.page)
            yield message

    def _forget(self, document: int, page: int) -> None:
        """Counts a page as answered."""
        self.pages[document].discard(page)
        if not self.pages[document]:
            del self.pages[document]

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
        self.pipe.close()  # it ends with its pipe
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()

    def _gone(self) -> EngineError:
        self.process.join(5)
        return EngineError(
            f"the process of device {self.name} has ended (exit code {self.process.exitcode}); run the same command"
            " again to go on after the last page."
        )


def _chunk_pages(pages: str | None) -> list[int]:
    """Returns the pages (from 0) that a chunk names."""
    assert pages is not None  # each does
    return [int(number) - 1 for number in pages.split(",")]
