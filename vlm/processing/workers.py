"""Image files and PDF pages -> pixel values, in processes of their own: decoding holds up nobody."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import signal
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vlm.errors import ImageError, LimitError
from vlm.limits import MAX_PIXELS
from vlm.processing.documents import PdfDocument
from vlm.processing.image_processor import ProcessorSource
from vlm.processing.images import load_image

if TYPE_CHECKING:
    from PIL import Image

ImageFile = bytes | np.ndarray  # a file's content (PDF too), or [H, W, 3] uint8


@dataclass(frozen=True)
class MediaLimits:
    """What one request may bring."""

    max_images: int = 16  # pages of PDFs count
    max_pixels: int = MAX_PIXELS  # an image


class ImageWorkers:
    """A pool for the images of several models. `processes` 0: threads of this process."""

    def __init__(self, processes: int, limits: MediaLimits):
        self.limits, self._processes = limits, processes
        self._pool = self._started()

    async def pixels(self, files: list[ImageFile], source: ProcessorSource) -> list[np.ndarray]:
        """Images and PDFs, -> of each [pages, C, H, W] float32, an image a page.

        Raises ImageError, DocumentError and LimitError, with one sentence for the file that is wrong.
        """
        loop, pool = asyncio.get_running_loop(), self._pool
        try:
            return await loop.run_in_executor(pool, read_pixels, files, source, self.limits)
        except BrokenProcessPool:
            if self._pool is pool:
                self._pool = self._started()
            raise ImageError("the images broke the process that read them; send smaller or sounder ones.") from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _started(self) -> Executor:
        if not self._processes:
            return ThreadPoolExecutor(2, thread_name_prefix="images")
        # a fork of a process with threads and a device is not safe
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._processes, context, initializer=_begin)


def _begin() -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    torch.set_num_threads(1)


_processor = functools.lru_cache(maxsize=16)(ProcessorSource.load)


def read_pixels(files: list[ImageFile], source: ProcessorSource, limits: MediaLimits) -> list[np.ndarray]:
    """In this thread; as `ImageWorkers.pixels`."""
    room, found = limits.max_images, []
    for file in files:
        pages = _pages(file, room, limits)
        room -= len(pages)
        # one by one, as the pipeline has it: a batch may differ in the last bit
        found.append(np.concatenate([_processor(source)([page]).numpy() for page in pages]))
    return found


def _pages(file: ImageFile, room: int, limits: MediaLimits) -> list[Image.Image]:
    is_pdf = isinstance(file, bytes) and b"%PDF-" in file[:1024]
    pdf = PdfDocument(file, "the PDF") if is_pdf else None
    count = pdf.num_pages if pdf else 1
    if count > room:
        raise LimitError(f"a request may have {limits.max_images} images and pages; send the others by themselves.")
    if pdf is None:
        return [load_image(file, max_pixels=limits.max_pixels)]
    return [pdf.render(page, max_pixels=limits.max_pixels) for page in range(count)]
