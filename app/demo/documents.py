"""Pages of uploaded documents as pictures: what the worker processes do with a file that nobody has looked at."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vlm.errors import DocumentError, InputError, counted
from vlm.processing.media.documents.document import Document, open_document
from vlm.processing.media.images import Detail
from vlm_app.core.overlay import draw, regions_of

if TYPE_CHECKING:
    from PIL import Image

PREVIEW_WIDTH = 900  # pixels


@dataclass(frozen=True)
class UploadedPage:
    """Names a page, counted from 1, which is drawn where its pixel values are made."""

    path: str | None
    page: float | None

    def picture(self, detail: Detail | None = None) -> Image.Image:
        return page_image(self.path, self.page, detail)


def num_pages(path: str) -> int:
    with closing(_opened(path)) as document:
        return document.num_pages


def page_image(path: str | None, page: float | None, detail: Detail | None = None) -> Image.Image:
    """Returns a page, counted from 1, with `detail` no larger than what is kept of it needs. Raises DocumentError and
    ImageError that name the file as it was uploaded."""
    if path is None:
        raise InputError("there is no document yet; choose a PDF or an image, or take an example.")
    with closing(_opened(path)) as document:
        if page is None or not 1 <= page <= document.num_pages:
            have = counted(document.num_pages, "page")
            number = "no page" if page is None else f"page {page:g}"
            raise DocumentError(f"{number} was asked for, the document has {have}; type one of them.")
        try:
            return document.render(int(page) - 1, detail=detail)
        except InputError as error:
            raise _with_own_name(error, path) from None


def first_page(path: str) -> tuple[int, Image.Image]:
    """Returns how many pages a document has, and its first one as it is shown."""
    return num_pages(path), preview(path, 1)


def preview(path: str, page: float) -> Image.Image:
    """Returns a page that is no larger than what is shown."""
    image = page_image(path, page)
    return image if image.width <= PREVIEW_WIDTH else image.reduce(-(-image.width // PREVIEW_WIDTH))


def drawn(path: str, text: str) -> Image.Image:
    """Returns an image with the places that an answer names."""
    picture = page_image(path, 1)
    draw(picture, regions_of(text) or {})
    return picture


def uploaded_name(path: str) -> str:
    return Path(path).name


def _opened(path: str) -> Document:
    try:
        return open_document(path)
    except InputError as error:
        raise _with_own_name(error, path) from None


def _with_own_name(error: InputError, path: str) -> InputError:
    """Returns an error that does not tell the folder that uploads are kept in."""
    return type(error)(str(error).replace(path, uploaded_name(path)), error.kind)
