"""Documents of pages: PDFs by pypdfium2, and images, of which a TIFF may hold several."""

from __future__ import annotations

import io
import math
import re
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from PIL import Image

from vlm.artifacts.files import open_regular
from vlm.errors import DocumentError, ImageError, counted, listed
from vlm.limits import MAX_FRAMES, MAX_PAGE_PIXELS, MAX_PAGES, MAX_PDF_BYTES
from vlm.processing.image_tags import check_tags, seek_frame
from vlm.processing.images import Detail, damage, decoded, open_image
from vlm.processing.scanned_page import ScannedPage
from vlm.processing.sized_images import load_sized, sized

IMAGE_SUFFIXES = frozenset(
    {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp", ".gif", ".ppm", ".pgm", ".pbm", ".jp2"}
)
PDF_SUFFIX = ".pdf"
DPI = 200  # enough for any model's input after its own scaling down
MAX_SIDE = 2**15  # pixels of a page, which is otherwise a strip
POINTS = 72  # of a PDF, per inch
STDIN = "stdin"

_lock = Lock()  # PDFium is not for several threads, not even to close a document


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

    def render(self, page: int, dpi: int = DPI, *, detail: Detail | None = None) -> Image.Image:
        """Returns a page as an RGB picture, with `detail` no larger than what is kept of it needs. Raises DocumentError
        or ImageError for this page alone."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives up what it holds beside its file."""


class PdfDocument(Document):
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
        try:
            self._pdf = pypdfium2.PdfDocument(source)
            self.num_pages = len(self._pdf)
        except pypdfium2.PdfiumError as error:
            raise _why_not(source, self.name, str(error)) from None
        if not self.num_pages:
            raise DocumentError(f"{self.name} is a PDF without pages.", "empty")
        if self.num_pages > MAX_PAGES:
            raise DocumentError(
                f"{self.name} claims {self.num_pages:,} pages, the limit is {MAX_PAGES:,}; split it.", "too large"
            )

    def close(self) -> None:
        self._pdf.close()

    def render(
        self, page: int, dpi: int = DPI, *, max_pixels: int = MAX_PAGE_PIXELS, detail: Detail | None = None
    ) -> Image.Image:
        """Draws a page at `dpi`; a larger one at fewer, within both `max_pixels` and `MAX_PAGE_PIXELS`."""
        import pypdfium2

        name = f"{self.name} page {page + 1}"
        try:
            pdf_page = self._pdf[page]
            width, height = pdf_page.get_size()
            scale = _scale(width, height, name, dpi=dpi, max_pixels=min(max_pixels, MAX_PAGE_PIXELS))
            scan = None if detail is None else ScannedPage.of(pdf_page)

            def draw(part: float) -> Image.Image:
                if scan and part < 1 and (picture := scan.picture(width * scale * part, height * scale * part)):
                    return picture
                return _drawn(pdf_page, scale * part)

            return sized((height * scale, width * scale), draw, detail)
        except MemoryError:
            raise DocumentError(f"{name} takes more memory than there is; print it to a new one.", "memory") from None
        except (pypdfium2.PdfiumError, ValueError, OverflowError) as error:
            raise DocumentError(f"{name} cannot be rendered: {str(error).rstrip('.')}.") from None


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
    def __init__(self, path: Path):
        self.path, name = path, str(path)
        with open_image(path, name) as image:
            is_tiff = image.format == "TIFF"
        # an animation is one picture, a TIFF of several frames a document
        with damage(name), open_regular(path) as file:
            self._offsets = check_tags(file, nested=True) if is_tiff else ()
        self.num_pages = len(self._offsets) if is_tiff else 1
        if self.num_pages > MAX_FRAMES:
            raise ImageError(f"{name} has more than {MAX_FRAMES:,} frames; split it.", "too large")

    def render(self, page: int, dpi: int = DPI, *, detail: Detail | None = None) -> Image.Image:
        if not page:
            return load_sized(self.path, str(self.path), detail=detail, checked=True)
        name = f"{self.path} page {page + 1}"
        with open_image(self.path, name, checked=True) as image:
            with damage(name):
                seek_frame(image, page, self._offsets)
            return decoded(image, name)


@dataclass(frozen=True)
class DocumentPage:
    """A page of a file, or of a PDF's content that came over stdin; it is rendered when its picture is asked for."""

    source: str | bytes
    page: int  # from 0

    @property
    def name(self) -> str:
        return _name(self.source)

    def picture(self, detail: Detail | None = None) -> Image.Image:
        """Raises DocumentError and ImageError with the document's name and the page."""
        with _lock, closing(_opened(self.source)) as document:
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
    with _lock, closing(_opened(source)) as document:
        count = document.num_pages
    numbers = range(count) if pages is None else parse_pages(pages, count, _name(source))
    return [DocumentPage(source, page) for page in numbers]


def _name(source: str | bytes) -> str:
    return STDIN if isinstance(source, bytes) else source


def _opened(source: str | bytes) -> Document:
    return PdfDocument(source, STDIN) if isinstance(source, bytes) else open_document(source)


def parse_pages(pages: str, num_pages: int, name: str = "the document") -> list[int]:
    """Reads `1-4,7` -> [0, 1, 2, 3, 6], in the order given, none twice; DocumentError for what is no range or
    outside."""
    numbers: dict[int, None] = {}
    for part in pages.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:(-)\s*(\d*)\s*)?", part)
        if not match:
            raise DocumentError(
                f"the page range {pages!r} is not understood; write 1-4,7 or 5- for all from the fifth."
            )
        first = int(match[1])
        last = first if not match[2] else int(match[3]) if match[3] else num_pages
        if not 1 <= first <= last <= num_pages:
            raise DocumentError(
                f"pages {part.strip()} were asked for, {name} has {counted(num_pages, 'page')}.", "page range"
            )
        numbers.update(dict.fromkeys(range(first - 1, last)))
    return list(numbers)


def supported_suffixes() -> str:
    return listed(sorted(IMAGE_SUFFIXES | {PDF_SUFFIX}), 40)
