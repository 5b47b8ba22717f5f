"""Image files and PDF pages -> pixel values, in processes of their own: what a file does there, it does to itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vlm.errors import EngineError, ImageError, LimitError
from vlm.limits import MAX_PIXELS
from vlm.processing.documents import PdfDocument
from vlm.processing.image_processor import ProcessorSource
from vlm.processing.images import Rendered, load_image
from vlm.processing.worker_pool import WorkerPool
from vlm.processing.worker_process import Budget, WorkerFailure

if TYPE_CHECKING:
    from PIL import Image

ImageFile = bytes | np.ndarray | Rendered  # a file's content (PDF too), [H, W, 3] uint8, or a page of a file


@dataclass(frozen=True)
class MediaLimits:
    """What one request may bring, and what reading it may cost."""

    max_images: int = 16  # pages of PDFs count
    max_pixels: int = MAX_PIXELS  # an image
    budget: Budget = field(default_factory=Budget)


class ImageWorkers:
    """Reads the images of several models. `processes` 0: in threads of this process, without a budget."""

    def __init__(self, processes: int, limits: MediaLimits):
        self.limits = limits
        self.pool = WorkerPool(processes, limits.budget, "vlm.processing.preload") if processes else None
        self._threads = None if processes else ThreadPoolExecutor(2, thread_name_prefix="images")

    def start(self) -> None:
        """Starts the processes, without waiting for them; else the first call does."""
        if self.pool is not None:
            self.pool.start()

    async def pixels(self, files: Sequence[ImageFile], source: ProcessorSource) -> list[list[np.ndarray]]:
        """Images and PDFs, -> of each its pages [C, H, W] float32.

        Raises ImageError, DocumentError and LimitError, with one sentence for the file that is wrong or for a budget
        that is spent.
        """
        return await self.run("the images", read_pixels, files, source, self.limits)

    async def run(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a module's function there; `what` it reads is told in errors. Who stops waiting ends the call.

        Raises what the function raises, ImageError where it was over its budget, EngineError without a process.
        """
        if self.pool is None:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        call = self.pool.submit(lambda worker: worker.run(function, *arguments))
        try:
            return await asyncio.wrap_future(call)
        except WorkerFailure as failure:
            raise _told(failure.kind, what, self.limits.budget) from None
        finally:
            call.kill()  # for nothing, if it has ended

    def close(self) -> None:
        """Ends all processes at once."""
        if self.pool is not None:
            self.pool.close()
        elif self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _told(kind: str, what: str, budget: Budget) -> ImageError | EngineError:
    if kind == "start":
        return EngineError("the processes that read images cannot be started; the server's log says why.")
    if kind == "stopped":
        return EngineError("the server is ending; send the images to another one, or later.")
    sentence = {
        "timeout": f"reading {what} took longer than {budget.seconds:g} s; send less at once, or a simpler file",
        "memory": f"reading {what} takes more than {budget.memory_mb:,} MB; send less at once, or a smaller file",
        "crash": f"reading {what} broke the process that did it; send less at once, or a sounder file",
    }
    return ImageError(f"{sentence[kind]}.", kind)


# --- in the process ---
_processor = lru_cache(maxsize=16)(ProcessorSource.load)


def read_pixels(files: Sequence[ImageFile], source: ProcessorSource, limits: MediaLimits) -> list[list[np.ndarray]]:
    """Reads in this thread, as `ImageWorkers.pixels`. One picture is held at a time, whatever their number."""
    room, found = limits.max_images, []
    for file in files:
        # one by one, as the pipeline has it, too: a batch may differ in the last bit
        pages = list(map(partial(_processed, source), _pages(file, room, limits)))
        room -= len(pages)
        found.append(pages)
    return found


def _processed(source: ProcessorSource, page: Image.Image) -> np.ndarray:
    return _processor(source)([page])[0].numpy()


def _pages(file: ImageFile, room: int, limits: MediaLimits) -> Iterator[Image.Image]:
    pdf = PdfDocument(file, "the PDF") if isinstance(file, bytes) and b"%PDF-" in file[:1024] else None
    if (1 if pdf is None else pdf.num_pages) > room:
        raise LimitError(f"a request may have {limits.max_images} images and pages; send the others by themselves.")
    if pdf is None:
        yield load_image(file, max_pixels=limits.max_pixels)
        return
    for page in range(pdf.num_pages):
        yield pdf.render(page, max_pixels=limits.max_pixels)
