"""Pages of uploaded documents as pictures."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from vlm.errors import DocumentError, InputError
from vlm.processing.documents import Document, open_document

if TYPE_CHECKING:
    from PIL import Image

_lock = Lock()  # PDFium is not for several threads, not even to close a document
PREVIEW_WIDTH = 900  # pixels


def num_pages(path: str | None) -> int:
    with _lock, closing(_opened(path)) as document:
        return document.num_pages


def page_image(path: str | None, page: float | None) -> Image.Image:
    """A page, counted from 1. Raises DocumentError and ImageError that name the file as it was uploaded."""
    with _lock, closing(_opened(path)) as document:
        if page is None or not 1 <= page <= document.num_pages:
            have = "1 page" if document.num_pages == 1 else f"{document.num_pages} pages"
            raise DocumentError(f"page {page} was asked for, the document has {have}.")
        try:
            return document.render(int(page) - 1)
        except InputError as error:
            raise _with_own_name(error, path) from None


def preview(image: Image.Image) -> Image.Image:
    """No larger than what is shown."""
    return image if image.width <= PREVIEW_WIDTH else image.reduce(-(-image.width // PREVIEW_WIDTH))


def _opened(path: str | None) -> Document:
    if path is None:
        raise InputError("there is no document yet; choose a PDF or an image, or take an example.")
    try:
        return open_document(path)
    except InputError as error:
        raise _with_own_name(error, path) from None


def _with_own_name(error: InputError, path: str) -> InputError:
    """Without the folder that uploads are kept in."""
    return type(error)(str(error).replace(path, Path(path).name))
