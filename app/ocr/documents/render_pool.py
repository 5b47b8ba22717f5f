"""Pages read in worker processes: one that crashes or hangs its renderer costs that page alone."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import DocumentError, VlmError
from vlm.limits import MEDIA_MEMORY_MB, MEDIA_SECONDS
from vlm.processing.media.pool import MediaConfig, MediaPool, PoolState
from vlm.processing.workers.process import Budget, WorkerFailure, WorkerProcess
from vlm.stage_clock import StageClock
from vlm_app.core.storage import LocalCopy
from vlm_app.ocr.documents.open_document import OpenDocument
from vlm_app.ocr.documents.page_reading import PageImages, read_page
from vlm_app.ocr.events import TIMEOUT

if TYPE_CHECKING:
    from PIL.Image import Image

    from vlm.requests.pixels import ImagePixels
    from vlm_app.ocr.documents.pages import Pages

QUICK_SECONDS = 10.0  # for opening a document, or a page, that is asked for again later
MOST_TIMEOUTS = 3  # of a document's pages; its others are then given less time
KEPT_OPEN = 4  # documents, in each worker
PRELOAD = "vlm_app.ocr.documents.preload"
OPENING, READING = 0, 1  # the order in which workers take what waits: no document waits for another one's pages


class RenderPool:
    """So many worker processes, which start at once. They draw pages; with `images` they run the image processor,
    too."""

    def __init__(
        self,
        workers: int,
        images: PageImages | None = None,
        *,
        seconds: float = MEDIA_SECONDS,
        memory_mb: int = MEDIA_MEMORY_MB,
    ):
        self.ahead, self.clock = workers, StageClock()
        self.images = pickle.dumps(images)  # once, not with each page
        preload = __name__ if images is None else PRELOAD
        self._pool = MediaPool(MediaConfig(workers, budget=Budget(seconds, memory_mb), preload=preload))
        if images is not None:
            from vlm.processing.media.reading import WarmUp

            self._pool.prepare(WarmUp(images.source))
        self._pool.start()

    def open(self, path: Path, *, is_quick: bool = False) -> Future[Pages]:
        return self._pool.submit(lambda worker: PooledDocument(self, worker, path, is_quick=is_quick), OPENING)

    def read(self, document: PooledDocument, page: int) -> Future[Image | ImagePixels]:
        return self._pool.submit(lambda worker: document.read_by(worker, page), READING)

    def state(self) -> PoolState:
        return self._pool.state()

    def close(self) -> None:
        """Drops what waits and ends the workers."""
        self._pool.close()


class PooledDocument:
    """A document that workers hold open; the local copy of a remote one lives as long as this."""

    def __init__(self, pool: RenderPool, worker: WorkerProcess, path: Path, *, is_quick: bool):
        self._pool, self.path, self._is_quick = pool, path, is_quick
        self._num_timeouts = 0
        self._copy = LocalCopy(path)
        self.local = self._copy.path
        self.num_pages, self.num_attachments, self.digest = self._answer(worker, None)

    def named(self, text: str) -> str:
        return self._copy.named(text)

    def read(self, page: int) -> Future[Image | ImagePixels]:
        return self._pool.read(self, page)

    def read_by(self, worker: WorkerProcess, page: int) -> Image | ImagePixels:
        return self._answer(worker, page)

    @property
    def _is_slow(self) -> bool:
        return self._num_timeouts >= MOST_TIMEOUTS

    def _answer(self, worker: WorkerProcess, page: int | None) -> Any:
        budget = worker.budget
        if self._is_quick or self._is_slow:
            budget = replace(budget, seconds=min(budget.seconds, QUICK_SECONDS))
        try:
            if self._is_quick and self._is_slow:
                raise WorkerFailure(TIMEOUT)
            answer, costs = worker.run(_answer, self.local, page, self._pool.images, seconds=budget.seconds)
            self._pool.clock.add(costs)
            return answer
        except WorkerFailure as failure:
            self._num_timeouts += failure.kind == TIMEOUT
            what = f"{self.path} page {page + 1}" if page is not None else str(self.path)
            raise DocumentError(_sentence(failure.kind, what, budget), failure.kind) from None
        except VlmError as error:
            raise type(error)(self.named(str(error)), error.kind) from None


def _sentence(kind: str, what: str, budget: Budget) -> str:
    return {
        TIMEOUT: f"{what} took longer than {budget.seconds:g} s to render.",
        "memory": f"{what} takes more than {budget.memory_mb:,} MB to render; print it to a new one.",
        "crash": f"{what} crashed its renderer; repair it or print it to a new one.",
        "start": f"{what} has no renderer: its process cannot be started; see above.",
        "stopped": f"{what} was not rendered: the job is ending.",
    }[kind]


# --- in the process ---
_documents: OrderedDict[Path, OpenDocument] = OrderedDict()  # the last ones, open
_images: Callable[[bytes], PageImages | None] = lru_cache(maxsize=4)(pickle.loads)


def _answer(path: Path, page: int | None, images: bytes) -> tuple[Any, Mapping[str, float]]:
    """Returns a page, or for None (number of pages, of attachments, digest of the content); and the CPU seconds of its
    stages."""
    clock = StageClock()
    try:
        with clock("open"):
            document = _opened(path, again=page is None)
            answer = (document.num_pages, document.num_attachments, document.digest) if page is None else None
        if page is not None:
            answer = read_page(document, page, _images(images), clock)
        return answer, clock.seconds()
    except (VlmError, MemoryError):
        raise
    except Exception as error:
        raise DocumentError(f"{path} cannot be rendered: {error}.") from None


def _opened(path: Path, *, again: bool) -> OpenDocument:
    if again:  # it may have changed since
        _documents.pop(path, None)
    if path not in _documents:
        _documents[path] = OpenDocument(path)
    _documents.move_to_end(path)
    if len(_documents) > KEPT_OPEN:
        _documents.popitem(last=False)
    return _documents[path]
