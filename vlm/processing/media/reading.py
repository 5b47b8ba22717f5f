"""Image files and PDF pages -> pixel values, in a media pool: what a file does there, it does to itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from PIL import Image

from vlm.errors import LimitError, VlmError, counted
from vlm.processing.media.documents.document import Document, content_document, is_pdf, may_have_pages
from vlm.processing.media.image_processor import ProcessorSource
from vlm.processing.media.images import Detail, Rendered, load_image
from vlm.processing.media.pool import MediaConfig, MediaPool
from vlm.processing.media.sized_images import load_sized
from vlm.processing.workers.call_queue import Lane
from vlm.requests.pixels import ImagePixels

ImageFile = bytes | np.ndarray | Rendered  # a file's content (PDF too), [H, W, 3] uint8, or a page of a file


@dataclass(frozen=True)
class WarmUp:
    """Runs an image processor once, as a pool's preparation: what that imports and keeps, no image waits for."""

    source: ProcessorSource

    def __call__(self) -> None:
        _warm_up(self.source)


async def pixels(
    pool: MediaPool, files: Sequence[ImageFile], source: ProcessorSource, question: str | None = None
) -> list[list[ImagePixels]]:
    """Reads images, PDFs and TIFFs -> of each its pages, with the question drawn on them where there is one.

    Raises ImageError, DocumentError and LimitError, with one sentence for the file that is wrong or for a budget that
    is spent.
    """
    has_documents = any(isinstance(each, bytes) and may_have_pages(each) for each in files)
    lane = Lane.DOCUMENTS if has_documents else Lane.IMAGES
    return await pool.run("the images", read_pixels, files, source, pool.config, question, lane=lane)


# --- in the process ---
processor = lru_cache(maxsize=16)(ProcessorSource.load)


@lru_cache(maxsize=16)
def _warm_up(source: ProcessorSource) -> None:
    with contextlib.suppress(VlmError):  # its images are told
        processor(source).read(Image.new("RGB", (8, 8), "white"))


def read_pixels(
    files: Sequence[ImageFile], source: ProcessorSource, config: MediaConfig, question: str | None = None
) -> list[list[ImagePixels]]:
    """Reads in this thread, as `pixels`. One picture is held at a time, whatever their number."""
    room, images = config.max_images, []
    detail = None if config.exact_pixels else processor(source)
    for file in files:
        # one by one, as the pipeline has it, too: a batch may differ in the last bit
        pages = list(map(partial(_processed, source, question), _pages(file, room, config, detail)))
        room -= len(pages)
        images.append(pages)
    return images


def _processed(source: ProcessorSource, question: str | None, page: Image.Image) -> ImagePixels:
    own = processor(source)
    return own.read(own.with_question(page, question)).hashed()


def _pages(file: ImageFile, room: int, config: MediaConfig, detail: Detail | None) -> Iterator[Image.Image]:
    document = _document(file) if isinstance(file, bytes) and may_have_pages(file) else None
    if (1 if document is None else document.num_pages) > room:
        allowed = counted(config.max_images, "image or page", "images and pages")
        raise LimitError(f"a request may have {allowed}; send the others by themselves.")
    if document is None:
        yield _picture(file, config.max_pixels, detail)
        return
    for page in range(document.num_pages):
        yield document.render(page, max_pixels=config.max_pixels, detail=detail)


def _document(content: bytes) -> Document:
    return content_document(content, "the PDF" if is_pdf(content) else "the image")


def _picture(file: ImageFile, max_pixels: int, detail: Detail | None) -> Image.Image:
    if isinstance(file, bytes):
        return load_sized(file, "the image", max_pixels=max_pixels, detail=detail)
    return load_image(file, max_pixels=max_pixels, detail=detail)
