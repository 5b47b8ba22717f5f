"""PDFs, whose pages pypdfium2 draws."""

from __future__ import annotations

import atexit
import functools
import io
import logging
import math
import re
from contextlib import closing
from pathlib import Path
from threading import RLock
from typing import Any
from weakref import WeakSet

from PIL import Image

from vlm.artifacts.files import open_regular
from vlm.errors import DocumentError
from vlm.limits import MAX_PAGE_PIXELS, MAX_PAGES, MAX_PDF_BYTES
from vlm.processing.media.documents.pdf_streams import AlteredImages
from vlm.processing.media.documents.scanned_page import ScannedPage
from vlm.processing.media.images import Detail
from vlm.processing.media.sized_images import sized

DPI = 200  # enough for any model's input after its own scaling down
MAX_SIDE = 2**15  # pixels of a page, which is otherwise a strip
POINTS = 72  # of a PDF, per inch

# held by whoever uses PDFium, which is not for several threads at once, not even to close a document; reentrant: a
# collection may close one in the middle of a rendering
PDFIUM = RLock()


@functools.cache
def _closed_at_exit() -> WeakSet[PdfDocument]:
    """Returns documents that are closed at the end of the process: pypdfium2, which is imported and so ends after
    this, would write a line of each."""
    documents: WeakSet[PdfDocument] = WeakSet()
    atexit.register(lambda: [document.close() for document in documents])
    return documents


class PdfDocument:
    """A Document, for use by several threads: one waits for another."""

    _pdf: Any = None  # where it could not be opened

    def __init__(self, source: Path | bytes, name: str | None = None):
        """A file or its content; `name`: what errors call it."""
        self.name = name or str(source)
        try:
            import pypdfium2
        except ImportError:
            raise DocumentError(
                f"{self.name} is a PDF, which needs the package pypdfium2: pip install pypdfium2."
            ) from None

        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        if size > MAX_PDF_BYTES:
            reason = f"has {size:,} bytes, the limit is {MAX_PDF_BYTES:,}; split it"
            raise DocumentError(f"{self.name} {reason}.", "too large")
        with PDFIUM:
            try:
                self._pdf = pypdfium2.PdfDocument(source)
                _prepare_forms(self._pdf)
                is_encrypted = pypdfium2.raw.FPDF_GetSecurityHandlerRevision(self._pdf) >= 0
                self._altered = AlteredImages(source, is_encrypted=is_encrypted)
                self.num_pages, self.num_attachments = len(self._pdf), self._pdf.count_attachments()
                _closed_at_exit().add(self)
            except pypdfium2.PdfiumError as error:
                raise _why_not(source, self.name, str(error)) from None
            if refusal := self._refusal():
                self.close()
                raise refusal

    def _refusal(self) -> DocumentError | None:
        """Returns what is wrong with the number of pages; None: nothing."""
        if not self.num_pages:
            return DocumentError(f"{self.name} is a PDF without pages.", "empty")
        if self.num_pages > MAX_PAGES:
            return DocumentError(
                f"{self.name} claims {self.num_pages:,} pages, the limit is {MAX_PAGES:,}; split it.", "too large"
            )
        return None

    def close(self) -> None:
        with PDFIUM:
            self._pdf.close()

    def __del__(self) -> None:
        if self._pdf is not None:
            self.close()

    def render(
        self, page: int, dpi: int = DPI, *, max_pixels: int = MAX_PAGE_PIXELS, detail: Detail | None = None
    ) -> Image.Image:
        """Draws a page at `dpi`; a larger one at fewer, within both `max_pixels` and `MAX_PAGE_PIXELS`."""
        import pypdfium2

        name = f"{self.name} page {page + 1}"
        try:
            with PDFIUM, closing(self._pdf[page]) as pdf_page:
                scale = _scale(pdf_page, name, dpi=dpi, max_pixels=min(max_pixels, MAX_PAGE_PIXELS))
                scan = None if detail is None else ScannedPage.of(pdf_page, self._altered)
                return _picture(pdf_page, scan, scale=scale, detail=detail)
        except MemoryError:
            raise DocumentError(f"{name} takes more memory than there is; print it to a new one.", "memory") from None
        except (pypdfium2.PdfiumError, OSError, ValueError, OverflowError) as error:
            raise DocumentError(f"{name} cannot be rendered: {str(error).rstrip('.')}.") from None


def _prepare_forms(pdf: Any) -> None:
    """Lets what was filled into form fields be drawn, which to PDFium is no part of a page; before one is opened."""
    logging.getLogger("pypdfium2").setLevel(logging.ERROR)  # it warns of XFA, whose fields are drawn all the same
    pdf.init_forms()


def _picture(pdf_page: Any, scan: ScannedPage | None, *, scale: float, detail: Detail | None) -> Image.Image:
    """Returns a page at so many pixels a point, or what `detail` needs of them: out of its `scan` where it is one."""
    width, height = pdf_page.get_size()

    def draw(part: float) -> Image.Image:
        if scan and part < 1 and (picture := scan.picture(width * scale * part, height * scale * part)):
            return picture
        return _drawn(pdf_page, scale * part)

    return sized((height * scale, width * scale), draw, detail)


def _drawn(pdf_page: Any, scale: float) -> Image.Image:
    bitmap = pdf_page.render(scale=scale, prefer_bgrx=True)  # pdfium fills and blends whole words faster than bytes
    size = bitmap.width, bitmap.height
    return Image.frombuffer("RGB", size, bitmap.buffer, "raw", "BGRX", bitmap.stride, 1)


def _why_not(source: Path | bytes, name: str, reason: str) -> DocumentError:
    # pdfium says nothing of a PDF without pages: the reason is then that of an earlier document
    content = source if isinstance(source, bytes) else _ends_of(source)
    if not content:
        return DocumentError(f"{name} is empty.", "empty")
    if b"/Encrypt" in content and "assword" in reason:
        return DocumentError(f"{name} is encrypted; remove its password first.", "encrypted")
    if re.search(rb"/Count\s+0\b", content):
        return DocumentError(f"{name} is a PDF without pages.", "empty")
    detail = "" if "assword" in reason else f" ({reason.rstrip('.')})"
    return DocumentError(f"{name} is no readable PDF{detail}; repair it or print it to a new one.")


def _ends_of(path: Path, size: int = 2**24) -> bytes:
    """Returns a file's first and last bytes, where a PDF has its trailer."""
    with open_regular(path) as file:
        start = file.read(size)
        file.seek(max(size, file.seek(0, io.SEEK_END) - size))
        return start + file.read(size)


def _scale(pdf_page: Any, name: str, *, dpi: int, max_pixels: int) -> float:
    """Returns the pixels a point: `dpi`, less where a page is so large that it would pass the pixel limit."""
    width, height = pdf_page.get_size()
    if not (1 <= width < math.inf and 1 <= height < math.inf):  # false for NaN too
        raise DocumentError(f"{name} is {width:g}×{height:g} points; a page has at least one.")
    within = math.sqrt(max_pixels / width / height) * 0.99
    return min(dpi / POINTS, within, MAX_SIDE / max(width, height))
