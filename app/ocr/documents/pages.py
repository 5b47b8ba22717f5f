"""Documents that are open, and how their pages are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from vlm.errors import DocumentError, InputError, VlmError
from vlm.stage_clock import StageClock
from vlm_app.ocr.documents.open_document import OpenDocument
from vlm_app.ocr.documents.page_reading import PageImages, read_page
from vlm_app.ocr.events import Opened, Unreadable, Work

if TYPE_CHECKING:
    from PIL.Image import Image

    from vlm.requests.pixels import ImagePixels

MOST_PAGES = 100_000  # of a document
THREADS = 4  # that read pages in this process


class Pages(Protocol):
    """An open document, wherever it is rendered."""

    num_pages: int
    num_attachments: int  # files in it, which are not read
    digest: str  # of its content
    local: Path  # on this machine, as long as this object lives

    def named(self, text: str) -> str:
        """Returns a message about the local file, told of the document."""
        ...

    def read(self, page: int) -> Future[Image | ImagePixels]:
        """Begins to read a page (from 0). The future has it, or raises DocumentError or ImageError."""
        ...


class Renderer(Protocol):
    """Opens documents; their pages are pictures, or with an image processor what that makes of them."""

    ahead: int  # documents that it opens while another one is read
    clock: StageClock

    def open(self, path: Path, *, is_quick: bool = False) -> Future[Pages]:
        """Begins to open a document. `is_quick`: neither this nor a page of it may take long."""
        ...

    def close(self) -> None: ...


class InProcess:
    """Reads pages in threads of this process, however long that takes."""

    ahead = 0

    def __init__(self, images: PageImages | None = None):
        self.clock, self._images = StageClock(), images
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pages")

    def open(self, path: Path, *, is_quick: bool = False) -> Future[Pages]:
        future: Future[Pages] = Future()
        try:
            with self.clock("open"):
                future.set_result(LocalPages(OpenDocument(path), self))
        except VlmError as error:
            future.set_exception(error)
        return future

    def read(self, document: OpenDocument, page: int) -> Future[Image | ImagePixels]:
        return self._threads.submit(read_page, document, page, self._images, self.clock)

    def close(self) -> None:
        """Drops what waits."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class LocalPages:
    """A document that this process holds open."""

    def __init__(self, document: OpenDocument, renderer: InProcess):
        self._document, self._renderer = document, renderer
        self.num_pages, self.num_attachments = document.num_pages, document.num_attachments
        self.digest, self.local = document.digest, document.local

    def named(self, text: str) -> str:
        return self._document.named(text)

    def read(self, page: int) -> Future[Image | ImagePixels]:
        return self._renderer.read(self._document, page)


def opening(
    renderer: Renderer, works: Iterable[Work], *, in_order: bool = False
) -> Iterator[tuple[Work, Future[Pages]]]:
    """Yields works as their documents open, the next few being opened meanwhile: one that is long in opening holds up
    no other, unless they are to come in order."""
    take = _first if in_order else _first_open
    pending: list[tuple[Work, Future[Pages]]] = []
    for work in works:
        pending.append((work, renderer.open(work.path, is_quick=work.is_quick)))
        if len(pending) > renderer.ahead:
            yield take(pending)
    while pending:
        yield take(pending)


def _first(pending: list[tuple[Work, Future[Pages]]]) -> tuple[Work, Future[Pages]]:
    return pending.pop(0)


def _first_open(pending: list[tuple[Work, Future[Pages]]]) -> tuple[Work, Future[Pages]]:
    """Takes the first of those that are open; waits until one is."""
    wait([future for _, future in pending], return_when=FIRST_COMPLETED)
    return pending.pop(next(i for i, (_, future) in enumerate(pending) if future.done()))


def opened(work: Work, future: Future[Pages]) -> tuple[Opened, Pages] | Unreadable:
    """Waits for a document that is being opened; returns what a job is told of it, with the document if it is open."""
    try:
        document = future.result()
        pages = selected(work.pages, document.num_pages)
    except VlmError as error:
        return Unreadable(work.document, error.kind, str(error), work.pages)
    return Opened(work.document, document.num_pages, pages, document.digest, document.num_attachments), document


def selected(pages: str | None, num_pages: int) -> tuple[int, ...]:
    """Returns the indices of the pages asked for that the document has; DocumentError where these are none."""
    from vlm.processing.media.documents.page_range import parse_pages

    return tuple(range(num_pages) if pages is None else parse_pages(pages, num_pages))


def check_pages(pages: str | None) -> None:
    """Finds a page range that suits no document, before any is opened."""
    try:
        selected("1" if pages is None else pages, MOST_PAGES)
    except DocumentError:
        raise InputError(f"--pages is {pages!r}; write 1-4,7, or 5- for all from the fifth.") from None
