"""Documents that are open, and their pages as inputs of a pipeline, rendered when they are due."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vlm.errors import DocumentError, InputError, VlmError
from vlm_app.core.storage import LocalCopy, digest
from vlm_app.ocr.events import Work

if TYPE_CHECKING:
    from PIL.Image import Image

    from vlm.processing.documents import Document

MOST_PAGES = 100_000  # of a document


class Pages(Protocol):
    """An open document, wherever it is rendered."""

    num_pages: int
    digest: str  # of its content
    local: Path  # on this machine, as long as this object lives

    def named(self, text: str) -> str:
        """Returns a message about the local file, told of the document."""
        ...

    def begin(self, page: int) -> Callable[[], Image]:
        """Returns a call that gives the page (from 0), or raises DocumentError or ImageError."""
        ...


class Renderer(Protocol):
    """Opens documents."""

    ahead: int  # documents that it opens while another one is read

    def open(self, path: Path) -> Future[Pages]: ...

    def close(self) -> None: ...


class InProcess:
    """Renders in this process, when a page is looked up."""

    ahead = 0

    def open(self, path: Path) -> Future[Pages]:
        future: Future[Pages] = Future()
        try:
            future.set_result(OpenDocument(path))
        except VlmError as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Has nothing to close."""


class OpenDocument:
    """A document whose pages may be rendered by several threads: pdfium works in one at a time, and closes in one.

    Raises DocumentError or ImageError when it is opened and when a page is rendered.
    """

    def __init__(self, path: Path):
        from vlm.processing.documents import PdfDocument, open_document

        self._lock = _PDFIUM
        self._copy = LocalCopy(path)
        with _PDFIUM, self._renamed():
            self._document: Document = open_document(self._copy.path)
            self.num_pages = self._document.num_pages
        if not isinstance(self._document, PdfDocument):
            self._lock = contextlib.nullcontext()
        self.path, self.local, self.digest = path, self._copy.path, digest(self._copy.path)

    def named(self, text: str) -> str:
        return self._copy.named(text)

    def begin(self, page: int) -> Callable[[], Image]:
        return partial(self.render, page)

    def render(self, page: int) -> Image:
        """Returns a page (from 0) in RGB."""
        try:
            with self._lock, self._renamed():
                return self._document.render(page)
        except VlmError:
            raise
        except MemoryError:
            reason = f"{self.path} page {page + 1} takes more memory than there is; print it to a new one."
            raise DocumentError(reason, "memory") from None
        except Exception as error:  # whatever a renderer trips over costs this page, not the job
            raise DocumentError(f"{self.path} page {page + 1} cannot be rendered: {error}.") from error

    @contextlib.contextmanager
    def _renamed(self) -> Iterator[None]:
        try:
            yield
        except VlmError as error:
            raise type(error)(self.named(str(error)), error.kind) from None

    def __del__(self) -> None:
        with self._lock:
            vars(self).pop("_document", None)  # none where it could not be opened


_PDFIUM = threading.RLock()  # reentrant: a collection may run __del__ in the middle of a rendering


class PageInput(Mapping[str, Any]):
    """One page as a pipeline's input. A worker thread looks it up: pages that are not yet due cost neither memory nor
    the engine's time."""

    def __init__(self, document: Pages, page: int):
        self._picture = document.begin(page)

    def __getitem__(self, key: str) -> list[Any]:
        if key != "images":
            raise KeyError(key)
        return [self._picture()]

    def __iter__(self) -> Iterator[str]:
        return iter(("images",))

    def __len__(self) -> int:
        return 1


def opening(renderer: Renderer, works: Iterable[Work]) -> Iterator[tuple[Work, Future[Pages]]]:
    """Yields works in order, the next few documents being opened meanwhile."""
    pending: deque[tuple[Work, Future[Pages]]] = deque()
    for work in works:
        pending.append((work, renderer.open(work.path)))
        if len(pending) > renderer.ahead:
            yield pending.popleft()
    yield from pending


def selected(pages: str | None, num_pages: int) -> tuple[int, ...]:
    """Returns the indices of the pages asked for; DocumentError where the document has none such."""
    from vlm.processing.documents import parse_pages

    return tuple(parse_pages(pages, num_pages) if pages else range(num_pages))


def check_pages(pages: str | None) -> None:
    """Finds a page range that suits no document, before any is opened."""
    try:
        selected(pages or "1", MOST_PAGES)
    except DocumentError:
        raise InputError(f"--pages is {pages!r}; write 1-4,7, or 5- for all from the fifth.") from None
