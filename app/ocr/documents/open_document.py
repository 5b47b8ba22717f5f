"""A document that is open in this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from vlm.errors import DocumentError, VlmError
from vlm_app.core.storage import LocalCopy, digest

if TYPE_CHECKING:
    from PIL.Image import Image

    from vlm.processing.media.documents.document import Document
    from vlm.processing.media.images import Detail

MOST_HELD = 2**26  # bytes of a PDF that PDFium keeps in memory: what it has read of a file, until that is closed


class OpenDocument:
    """A document whose pages may be rendered by several threads: pdfium works in one at a time.

    Raises DocumentError or ImageError when it is opened and when a page is rendered.
    """

    def __init__(self, path: Path):
        from vlm.processing.media.documents.document import open_document
        from vlm.processing.media.documents.pdf import PDFIUM, PdfDocument

        self._copy = LocalCopy(path)
        with self._renamed():
            self._document: Document = open_document(self._copy.path)
        self.num_pages, self.num_attachments = self._document.num_pages, self._document.num_attachments
        self._is_pdf = isinstance(self._document, PdfDocument)
        self._lock = PDFIUM if self._is_pdf else contextlib.nullcontext()  # of what is opened again between two pages
        self.path, self.local = path, self._copy.path
        self._page_size, self._held = self.local.stat().st_size / self.num_pages, 0.0

    @cached_property
    def digest(self) -> str:
        """Returns the SHA-256 of its content, which takes as long as it takes to read a page of a scan."""
        return digest(self.local)

    def named(self, text: str) -> str:
        return self._copy.named(text)

    def render(self, page: int, detail: Detail | None = None) -> Image:
        """Returns a page (from 0) in RGB, with `detail` no larger than what is kept of it needs."""
        try:
            with self._lock, self._renamed():
                if self._is_pdf:
                    self._free_in_time()
                return self._document.render(page, detail=detail)
        except VlmError:
            raise
        except MemoryError:
            reason = f"{self.path} page {page + 1} takes more memory than there is; print it to a new one."
            raise DocumentError(reason, "memory") from None
        except Exception as error:  # whatever a renderer trips over costs this page, not the job
            raise DocumentError(f"{self.path} page {page + 1} cannot be rendered: {error}.") from error

    def _free_in_time(self) -> None:
        """Opens the file again when so many pages have been read that memory would be filled with it."""
        from vlm.processing.media.documents.document import open_document

        self._held += self._page_size
        if self._held > MOST_HELD:
            fresh = open_document(self.local)
            self._document.close()
            self._document, self._held = fresh, self._page_size

    @contextlib.contextmanager
    def _renamed(self) -> Iterator[None]:
        try:
            yield
        except VlmError as error:
            raise type(error)(self.named(str(error)), error.kind) from None
