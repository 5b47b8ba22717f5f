"""Pages as a model takes them, read where they are drawn: an eighth of a picture's bytes is handed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

    from vlm.processing.media.image_processor import ProcessorSource
    from vlm.requests.pixels import ImagePixels
    from vlm.stage_clock import StageClock
    from vlm_app.ocr.documents.open_document import OpenDocument


@dataclass(frozen=True)
class PageImages:
    """How pages become what a model takes."""

    source: ProcessorSource
    exact_pixels: bool = False  # they are drawn at full size, whatever the model keeps of them
    question: str | None = None  # drawn on each page


def read_page(document: OpenDocument, page: int, images: PageImages | None, clock: StageClock) -> Image | ImagePixels:
    """Returns a page (from 0): its picture, or what the image processor makes of it. Raises DocumentError and
    ImageError."""
    if images is None:
        with clock("draw"):
            return document.render(page)
    from vlm.processing.media.reading import processor

    own = processor(images.source)
    with clock("draw"):
        picture = document.render(page, None if images.exact_pixels else own)
    with clock("process"):
        return own.read(own.with_question(picture, images.question)).hashed()
