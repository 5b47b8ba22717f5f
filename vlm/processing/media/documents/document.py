"""Documents of pages: PDFs, and images, of which a TIFF may hold several."""

from __future__ import annotations

import contextlib
import io
import itertools
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from PIL import Image

from vlm.artifacts.files import open_regular
from vlm.errors import DocumentError, ImageError, listed
from vlm.limits import MAX_FRAMES, MAX_PIXELS
from vlm.processing.media.documents.page_range import parse_pages
from vlm.processing.media.documents.pdf import DPI, PdfDocument
from vlm.processing.media.image_tags import check_tags, seek_frame
from vlm.processing.media.images import DOCUMENT, Detail, begins_like_an_image, damage, decoded, open_image
from vlm.processing.media.sized_images import load_sized

IMAGE_SUFFIXES = frozenset(
    {
        *(".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".tif", ".tiff", ".webp", ".bmp", ".gif"),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".j2c", ".jpc", ".jpf", ".jpx"),
    }
)
PDF_SUFFIX = ".pdf"
STDIN = "stdin"
TIFF_SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # how a file begins, a large one, too


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
        if b"%PDF-" in file.read(1024):
            return True
        return path.suffix.lower() == PDF_SUFFIX and not begins_like_an_image(file)


class Document(Protocol):
    """Pages by index, from 0."""

    num_pages: int
    num_attachments: int = 0  # files in it, which are not read

    def render(
        self, page: int, dpi: int = DPI, *, max_pixels: int = MAX_PIXELS, detail: Detail | None = None
    ) -> Image.Image:
        """Returns a page as an RGB picture, with `detail` no larger than what is kept of it needs. Raises DocumentError
        or ImageError for this page alone."""
        raise NotImplementedError

    def close(self) -> None:
        """Gives up what it holds beside its file."""


class ImageDocument(Document):
    def __init__(self, source: Path | bytes, name: str | None = None):
        """A file or its content; `name`: what errors call it."""
        self._source, self.name = source, name or str(source)
        with open_image(source, self.name, what=DOCUMENT) as image:
            is_tiff = image.format == "TIFF"
        # an animation is one picture, a TIFF of several frames a document
        with damage(self.name), io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
            directories = check_tags(file, nested=True) if is_tiff else {0: True}
        self._offsets = tuple(directories)
        # those that are pages; of a file without any, all
        self._frames = [*itertools.compress(itertools.count(), directories.values())] or range(len(directories))
        self.num_pages = len(self._frames)
        if len(directories) > MAX_FRAMES:
            raise ImageError(f"{self.name} has more than {MAX_FRAMES:,} frames; split it.", "too large")

    def render(
        self, page: int, dpi: int = DPI, *, max_pixels: int = MAX_PIXELS, detail: Detail | None = None
    ) -> Image.Image:
        """Decodes a page of at most `max_pixels`."""
        if not (frame := self._frames[page]):
            return load_sized(self._source, self.name, detail=detail, max_pixels=max_pixels, checked=True)
        name = f"{self.name} page {page + 1}"
        with open_image(self._source, name, checked=True) as image:
            with damage(name, image):
                seek_frame(image, frame, self._offsets)
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


def supported_suffixes() -> str:
    return listed(sorted(IMAGE_SUFFIXES | {PDF_SUFFIX}), 40)
