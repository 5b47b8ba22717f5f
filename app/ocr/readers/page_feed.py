"""Pages as inputs of an engine, begun in a thread of their own: a document that is long in opening holds up none."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlm_app.ocr.documents.pages import Pages

Page = tuple[int, int]  # the number of a document, and of the page in it (from 0)


class PageFeed(Iterator[Future[Any]]):
    """Yields a future for each input that an engine has room for; the page that is due next fulfils it. Those that no
    page is left for are cancelled. Raises what iterating the pages raises."""

    def __init__(self, pages: Iterator[tuple[int, int, Pages]], words: Mapping[str, str] | None = None):
        """`words`: what each page's input has beside the image."""
        self.pages: dict[int, Page] = {}  # by the number of the input
        self._due, self._words = pages, words or {}
        self._count = 0
        self._free: queue.SimpleQueue[tuple[int, Future[Any]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the end: no future is left behind
        self._has_ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="pages", daemon=True)  # begins with the first input

    def __next__(self) -> Future[Any]:
        future: Future[Any] = Future()
        if self._thread.ident is None:
            self._thread.start()
        with self._lock:
            if not self._has_ended:
                self._free.put((self._count, future))
                self._count += 1
                return future
        if self._error is not None:
            raise self._error
        raise StopIteration

    def close(self) -> None:
        """Begins no further page."""
        self._free.put(None)

    def _run(self) -> None:
        try:
            for document, page, pages in self._due:
                if (place := self._free.get()) is None:
                    return
                number, future = place
                self.pages[number] = document, page
                _hand_on(_begun(pages, page), future, self._words)
        except BaseException as error:
            self._error = error
        finally:
            self._end()

    def _end(self) -> None:
        with self._lock:
            self._has_ended = True
        while not self._free.empty():
            if (place := self._free.get()) is not None and place[1].cancel():
                place[1].set_running_or_notify_cancel()  # else who waits for it is not told


def _begun(pages: Pages, page: int) -> Future[Any]:
    """Begins with a page. What that raises is the future's: who waits for it would wait for ever."""
    try:
        return pages.read(page)
    except BaseException as error:
        failed: Future[Any] = Future()
        failed.set_exception(error)
        return failed


def page_input(image: Any, words: Mapping[str, str]) -> Any:
    """Returns what an engine is given of a page's image, and of what it is asked about it."""
    return {"images": [image], **words} if words else image


def _hand_on(source: Future[Any], target: Future[Any], words: Mapping[str, str]) -> None:
    """Lets one future end as another does, with the words, and be dropped with it."""

    def take_over(source: Future[Any]) -> None:
        if not target.set_running_or_notify_cancel():
            return
        if (error := source.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(page_input(source.result(), words))

    target.add_done_callback(lambda target: target.cancelled() and source.cancel())
    source.add_done_callback(take_over)
