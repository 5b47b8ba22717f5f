"""Rendering in worker processes: a page that crashes or hangs its renderer costs that page alone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import DocumentError, VlmError
from vlm.limits import MEDIA_MEMORY_MB
from vlm.processing.media_pool import MediaConfig, MediaPool, PoolState
from vlm.processing.worker_process import Budget, WorkerFailure, WorkerProcess
from vlm_app.core.storage import LocalCopy
from vlm_app.ocr.documents.pages import OpenDocument

if TYPE_CHECKING:
    from PIL.Image import Image

    from vlm_app.ocr.documents.pages import Pages

SECONDS = 120.0  # for opening a document, or drawing a page
KEPT_OPEN = 4  # documents, in each worker
OPENING, DRAWING = 0, 1  # the order in which workers take what waits: no document waits for another one's pages


class RenderPool:
    """So many worker processes, which start at once."""

    def __init__(self, workers: int, seconds: float = SECONDS, memory_mb: int = MEDIA_MEMORY_MB):
        self.ahead = workers
        self._pool = MediaPool(MediaConfig(workers, budget=Budget(seconds, memory_mb), preload=__name__))
        self._pool.start()

    def open(self, path: Path) -> Future[Pages]:
        return self._pool.submit(lambda worker: PooledDocument(self, worker, path), OPENING)

    def draw(self, document: PooledDocument, page: int) -> Future[Image]:
        return self._pool.submit(lambda worker: document.drawn_by(worker, page), DRAWING)

    def state(self) -> PoolState:
        return self._pool.state()

    def close(self) -> None:
        """Drops what waits and ends the workers."""
        self._pool.close()


class PooledDocument:
    """A document that workers hold open; the local copy of a remote one lives as long as this."""

    def __init__(self, pool: RenderPool, worker: WorkerProcess, path: Path):
        self._pool, self.path = pool, path
        self._copy = LocalCopy(path)
        self.local = self._copy.path
        self.num_pages, self.digest = self._answer(worker, None)

    def named(self, text: str) -> str:
        return self._copy.named(text)

    def begin(self, page: int) -> Callable[[], Image]:
        return self._pool.draw(self, page).result

    def drawn_by(self, worker: WorkerProcess, page: int) -> Image:
        return self._answer(worker, page)

    def _answer(self, worker: WorkerProcess, page: int | None) -> Any:
        try:
            return worker.run(_answer, self.local, page)
        except WorkerFailure as failure:
            what = f"{self.path} page {page + 1}" if page is not None else str(self.path)
            raise DocumentError(_sentence(failure.kind, what, worker.budget), failure.kind) from None
        except VlmError as error:
            raise type(error)(self.named(str(error)), error.kind) from None


def _sentence(kind: str, what: str, budget: Budget) -> str:
    return {
        "timeout": f"{what} took longer than {budget.seconds:g} s to render.",
        "memory": f"{what} takes more than {budget.memory_mb:,} MB to render; print it to a new one.",
        "crash": f"{what} crashed its renderer; repair it or print it to a new one.",
        "start": f"{what} has no renderer: its process cannot be started; see above.",
        "stopped": f"{what} was not rendered: the job is ending.",
    }[kind]


# --- in the process ---
_documents: OrderedDict[Path, OpenDocument] = OrderedDict()  # the last ones, open


def _answer(path: Path, page: int | None) -> Any:
    """Returns a page, or for None (number of pages, digest of the content)."""
    try:
        document = _opened(path, again=page is None)
        return document.render(page) if page is not None else (document.num_pages, document.digest)
    except (VlmError, MemoryError):
        raise
    except Exception as error:
        raise DocumentError(f"{path} cannot be rendered: {error}.") from None


def _opened(path: Path, again: bool) -> OpenDocument:
    if again:  # it may have changed since
        _documents.pop(path, None)
    if path not in _documents:
        _documents[path] = OpenDocument(path)
    _documents.move_to_end(path)
    if len(_documents) > KEPT_OPEN:
        _documents.popitem(last=False)
    return _documents[path]
