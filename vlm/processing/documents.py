"""Documents of pages: PDFs by pypdfium2, and images, of which a TIFF may hold several."""

from __future__ import annotations

import contextlib
import io
import math
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import RLock
from typing import Any

from PIL import Image

from vlm.artifacts.files import open_regular
from vlm.errors import DocumentError, ImageError, counted, listed
from vlm.limits import MAX_FRAMES, MAX_PAGE_PIXELS, MAX_PAGES, MAX_PDF_BYTES, MAX_PIXELS
from vlm.processing.image_tags import check_tags, seek_frame
from vlm.processing.images import Detail, damage, decoded, open_image
from vlm.processing.scanned_page import ScannedPage
from vlm.processing.sized_images import load_sized, sized

IMAGE_SUFFIXES = frozenset(
    {
        *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".tif", ".tiff", ".webp", ".bmp", ".gif"),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx"),
    }
)
PDF_SUFFIX = ".pdf"
DPI = 200  # enough for any model's input after its own scaling down
MAX_SIDE = 2**15  # pixels of a page, which is otherwise a strip
POINTS = 72  # of a PDF, per inch
STDIN = "stdin"
MOST_SHOWN = 60  # characters of a page range in an error
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # how a file begins, a large one, too

# held by whoever uses PDFium, which is not for several threads at once, not even to close a document; reentrant: a
# collection may close one in the middle of a rendering
PDFIUM = RLock()


def is_document(path: str | Path) -> bool:
    """Says by its suffix whether `open_document` may be tried on it."""
    suffix = Path(path).suffix.lower()
    return suffix == PDF_SUFFIX or suffix in IMAGE_SUFFIXES


def open_document(path: str | Path) -> Document:
    """Raises DocumentError or ImageError, with the file's name, for what is missing, encrypted or broken."""
    path = Path(path)
    try:
        pdf = _is_pdf(path)
    except FileNotFoundError:
        raise DocumentError(f"{path} does not exist; give the path of a PDF or an image.", "missing") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DocumentError(f"{path} cannot be read: {reason}; give the path of a PDF or an image.") from None
    return PdfDocument(path) if pdf else ImageDocument(path)


def _is_pdf(path: Path) -> bool:
    with open_regular(path) as file:
        return b"%PDF-" in file.read(1024) or path.suffix.lower() == PDF_SUFFIX


class Document:
    """Pages by index, from 0."""

    num_pages: int

    def render(
        self, page: int, dpi: int = DPI, *, max_pixels: int = MAX_PIXELS, detail: Detail | None = None
    ) -> Image.Image:
        """Returns a page as an RGB picture, with `detail` no larger than what is kept of it needs. Raises DocumentError
        or ImageError for this page alone."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives up what it holds beside its file."""


class PdfDocument(Document):
    """A PDF, for use by several threads: one waits for another."""

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
                self.num_pages = len(self._pdf)
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
                return _picture(pdf_page, name, dpi=dpi, max_pixels=min(max_pixels, MAX_PAGE_PIXELS), detail=detail)
        except MemoryError:
            raise DocumentError(f"{name} takes more memory than there is; print it to a new one.", "memory") from None
        except (pypdfium2.PdfiumError, ValueError, OverflowError) as error:
            raise DocumentError(f"{name} cannot be rendered: {str(error).rstrip('.')}.") from None


def _picture(pdf_page: Any, name: str, *, dpi: int, max_pixels: int, detail: Detail | None) -> Image.Image:
    """Returns a page as `PdfDocument.render` does."""
    width, height = pdf_page.get_size()
    scale = _scale(width, height, name, dpi=dpi, max_pixels=max_pixels)
    scan = None if detail is None else ScannedPage.of(pdf_page)

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
    detail = "" if "assword" in reason else f" ({reason})"
    return DocumentError(f"{name} is no readable PDF{detail}; repair it or print it to a new one.")


def _ends_of(path: Path, size: int = 2**24) -> bytes:
    """Returns a file's first and last bytes, where a PDF has its trailer."""
    with open_regular(path) as file:
        start = file.read(size)
        file.seek(max(size, file.seek(0, io.SEEK_END) - size))
        return start + file.read(size)


def _scale(width: float, height: float, name: str, *, dpi: int, max_pixels: int) -> float:
    """Returns the pixels a point: `dpi`, less where a page is so large that it would pass the pixel limit."""
    if not (1 <= width < math.inf and 1 <= height < math.inf):  # false for NaN too
        raise DocumentError(f"{name} is {width:g}×{height:g} points; a page has at least one.")
    within = math.sqrt(max_pixels / width / height) * 0.99
    return min(dpi / POINTS, within, MAX_SIDE / max(width, height))


class ImageDocument(Document):
    def __init__(self, source: Path | bytes, name: str | None = None):
        """A file or its content; `name`: what errors call it."""
        self._source, self.name = source, name or str(source)
        with open_image(source, self.name) as image:
            is_tiff = image.format == "TIFF"
        # an animation is one picture, a TIFF of several frames a document
        with damage(self.name), io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
            self._offsets = check_tags(file, nested=True) if is_tiff else ()
        self.num_pages = len(self._offsets) if is_tiff else 1
        if self.num_pages > MAX_FRAMES:
            raise ImageError(f"{self.name} has more than {MAX_FRAMES:,} frames; split it.", "too large")

    def render(
        self, page: int, dpi: int = DPI, *, max_pixels: int = MAX_PIXELS, detail: Detail | None = None
    ) -> Image.Image:
        """Decodes a page of at most `max_pixels`."""
        if not page:
            return load_sized(self._source, self.name, detail=detail, max_pixels=max_pixels, checked=True)
        name = f"{self.name} page {page + 1}"
        with open_image(self._source, name, checked=True) as image:
            with damage(name):
                seek_frame(image, page, self._offsets)
            return decoded(image, name, max_pixels)


@dataclass(frozen=True)
class DocumentPage:
    """A page of a file, or of a content that came over stdin; it is rendered when its picture is asked for."""

    source: str | bytes
    page: int  # from 0

    @property
    def name(self) -> str:
        return _name(self.source)

    def picture(self, detail: Detail | None = None) -> Image.Image:
        """Raises DocumentError and ImageError with the document's name and the page."""
        with closing(_opened(self.source)) as document:
            return document.render(self.page, detail=detail)


def is_pdf(source: str | bytes) -> bool:
    """Says whether a file that is there, or a content, is a PDF."""
    if isinstance(source, bytes):
        return b"%PDF-" in source[:1024]
    try:
        return _is_pdf(Path(source))
    except (OSError, ValueError):
        return False


def document_pages(source: str | bytes, pages: str | None = None) -> list[DocumentPage]:
    """Returns the pages that a range names, or all. Raises what `open_document` and `parse_pages` raise."""
    count = _num_pages(source)
    numbers = range(count) if pages is None else parse_pages(pages, count, _name(source))
    return [DocumentPage(source, page) for page in numbers]


def _name(source: str | bytes) -> str:
    return STDIN if isinstance(source, bytes) else source


def _opened(source: str | bytes) -> Document:
    return content_document(source, STDIN) if isinstance(source, bytes) else open_document(source)


def content_document(content: bytes, name: str) -> Document:
    """Opens what a file holds. Raises DocumentError and ImageError, which call it `name`."""
    return PdfDocument(content, name) if is_pdf(content) else ImageDocument(content, name)


def may_have_pages(content: bytes) -> bool:
    """Says whether what a file holds is a PDF or a TIFF, for how it begins."""
    return content.startswith(TIFF_SIGNATURES) or is_pdf(content)


def has_pages(source: str | bytes) -> bool:
    """Says whether a file that is there, or a content, is a PDF or a TIFF of several frames. Raises ImageError for a
    damaged TIFF."""
    return is_pdf(source) or (_beginning(source).startswith(TIFF_SIGNATURES) and _num_pages(source) > 1)


def _num_pages(source: str | bytes) -> int:
    with closing(_opened(source)) as document:
        return document.num_pages


def _beginning(source: str | bytes) -> bytes:
    """Returns the first bytes of a content or of a file, where there is one."""
    if isinstance(source, bytes):
        return source[:4]
    with contextlib.suppress(OSError, ValueError), open_regular(source) as file:
        return file.read(4)
    return b""


def parse_pages(pages: str, num_pages: int, name: str = "the document") -> list[int]:
    """Reads `1-4,7` -> [0, 1, 2, 3, 6], in the order given, none twice: those that a document of so many pages has.
    DocumentError for what is no range, and where it has none of them."""
    numbers: dict[int, None] = {}
    for part in pages.split(","):
        match = re.fullmatch(r"\s*(\d{1,18})\s*(?:(-)\s*(\d{0,18})\s*)?", part)
        if not match:
            raise DocumentError(
                f"the page range {_shown(pages)!r} is not understood; write 1-4,7 or 5- for all from the fifth."
            )
        first = int(match[1])
        last = first if not match[2] else int(match[3]) if match[3] else max(first, num_pages)
        if not 1 <= first <= last:
            raise _outside(part.strip(), num_pages, name)
        numbers.update(dict.fromkeys(range(first - 1, min(last, num_pages))))
    if not numbers:
        raise _outside(pages, num_pages, name)
    return list(numbers)


def _outside(pages: str, num_pages: int, name: str) -> DocumentError:
    known = "1 alone" if num_pages == 1 else f"some of 1 to {num_pages:,}"
    return DocumentError(
        f"pages {_shown(pages)} were asked for, {name} has {counted(num_pages, 'page')}; give {known}.", "page range"
    )


def _shown(pages: str) -> str:
    return pages if len(pages) <= MOST_SHOWN else f"{pages[:MOST_SHOWN]}…"


def supported_suffixes() -> str:
    return listed(sorted(IMAGE_SUFFIXES | {PDF_SUFFIX}), 40)
