"""Rendering in worker processes: a page that crashes or hangs its renderer costs that page alone."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import queue
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import DocumentError, VlmError
from vlm_app.ocr.pages import OpenDocument
from vlm_app.storage import LocalCopy

if TYPE_CHECKING:
    from PIL.Image import Image

SECONDS = 120.0  # for opening a document, or drawing a page
KEPT_OPEN = 4  # documents, in each worker
OPENING, DRAWING = 0, 1  # the order in which workers take what waits: no document waits for another one's pages


class RenderPool:
    """So many worker processes, a thread each that waits for it."""

    def __init__(self, workers: int, seconds: float = SECONDS):
        self.ahead = workers
        self._waiting: queue.PriorityQueue[tuple[int, int, Any]] = queue.PriorityQueue()
        self._count = itertools.count()
        self._workers = [_Worker(seconds) for _ in range(workers)]
        self._threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self._workers]
        for thread in self._threads:
            thread.start()

    def open(self, path: Path) -> Future[PooledDocument]:
        return self._submit(OPENING, lambda worker: PooledDocument(self, worker, path))

    def draw(self, document: PooledDocument, page: int) -> Future[Image]:
        return self._submit(DRAWING, lambda worker: document.drawn_by(worker, page))

    def close(self) -> None:
        """Drops what waits and ends the workers."""
        for _ in self._threads:
            self._waiting.put((-1, next(self._count), None))
        for thread in self._threads:
            thread.join()
        while not self._waiting.empty():
            if task := self._waiting.get()[2]:
                task[0].cancel()  # whoever waits for it learns of it

    def _submit(self, order: int, call: Callable[[_Worker], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.put((order, next(self._count), (future, call)))
        return future

    def _serve(self, worker: _Worker) -> None:
        worker.start()
        while (task := self._waiting.get()[2]) is not None:
            future, call = task
            try:
                future.set_result(call(worker))
            except Exception as error:
                future.set_exception(error)
            del task, future, call  # a document goes with its last page, not with the next task
        worker.stop()


class PooledDocument:
    """A document that workers hold open; the local copy of a remote one lives as long as this."""

    def __init__(self, pool: RenderPool, worker: _Worker, path: Path):
        self._pool, self.path = pool, path
        self._copy = LocalCopy(path)
        self.local = self._copy.path
        self.num_pages, self.digest = self._asked(worker, None)

    def named(self, text: str) -> str:
        return self._copy.named(text)

    def begin(self, page: int) -> Callable[[], Image]:
        return self._pool.draw(self, page).result

    def drawn_by(self, worker: _Worker, page: int) -> Image:
        return self._asked(worker, page)

    def _asked(self, worker: _Worker, page: int | None) -> Any:
        try:
            return worker.ask(self.local, page)
        except VlmError as error:
            raise type(error)(self.named(str(error)), error.kind) from None


class _Worker:
    """A process that draws; started anew after it died."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._process: multiprocessing.process.BaseProcess | None = None
        self._pipe: Connection | None = None

    def ask(self, path: Path, page: int | None) -> Any:
        """A page, or for None (number of pages, digest of the content)."""
        what = f"{path} page {page + 1}" if page is not None else str(path)
        pipe = self.start()
        try:
            pipe.send((path, page))
            if not pipe.poll(self._seconds):
                self.stop()
                raise DocumentError(f"{what} took longer than {self._seconds:g} s to render.", "timeout")
            answer = pipe.recv()
        except (EOFError, OSError):
            self.stop()
            raise DocumentError(f"{what} crashed its renderer; repair it or print it to a new one.", "crash") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def stop(self) -> None:
        if self._process is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
            self._process = None

    def start(self) -> Connection:
        if self._process is None:
            context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_draw_all, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
        return self._pipe


def _draw_all(pipe: Connection) -> None:
    """What a worker does until its parent has gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    documents: OrderedDict[Path, OpenDocument] = OrderedDict()
    with contextlib.suppress(EOFError, OSError):  # of the pipe
        while True:
            pipe.send(_answer(documents, *pipe.recv()))


def _answer(documents: OrderedDict[Path, OpenDocument], path: Path, page: int | None) -> Any:
    try:
        document = _opened(documents, path, anew=page is None)
        return document.render(page) if page is not None else (document.num_pages, document.digest)
    except VlmError as error:
        return error
    except Exception as error:
        return DocumentError(f"{path} cannot be rendered: {error}.")


def _opened(documents: OrderedDict[Path, OpenDocument], path: Path, anew: bool) -> OpenDocument:
    if anew:  # it may have changed since
        documents.pop(path, None)
    if path not in documents:
        documents[path] = OpenDocument(path)
    documents.move_to_end(path)
    if len(documents) > KEPT_OPEN:
        documents.popitem(last=False)
    return documents[path]
