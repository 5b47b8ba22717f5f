"""Pages as a model takes them, read where they are drawn: an eighth of a picture's bytes is handed on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

    from vlm.processing.image_processor import ProcessorSource
    from vlm.requests.pixels import ImagePixels
    from vlm.stage_clock import StageClock
    from vlm_app.ocr.documents.open_document import OpenDocument


def read_page(
    document: OpenDocument, page: int, source: ProcessorSource | None, clock: StageClock
) -> Image | ImagePixels:
    """Returns a page (from 0): its picture, or what the image processor makes of it. Raises DocumentError and
    ImageError."""
    with clock("draw"):
        picture = document.render(page)
    if source is None:
        return picture
    from vlm.processing.media_reading import processor

    with clock("process"):
        return processor(source).read(picture)
