"""Pages that an engine's room asks for, begun beside it."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from vlm.api.ahead.prefetch import Prefetch
from vlm.errors import DocumentError
from vlm_app.ocr.documents.pages import opening
from vlm_app.ocr.events import Work
from vlm_app.ocr.readers.page_feed import PageFeed


def document(**pages):
    """A document of pages that are futures, or values that are there."""
    futures = []
    for value in pages.values():
        futures.append(value if isinstance(value, Future) else Future())
        if not isinstance(value, Future):
            futures[-1].set_result(value)
    return SimpleNamespace(num_pages=len(futures), read=lambda page: futures[page])


def drained(feed: PageFeed, window: int = 2) -> dict[tuple[int, int], object]:
    with ThreadPoolExecutor(2) as pool, closing(feed):
        inputs, results = Prefetch(pool, enumerate(feed), lambda _, value: value, window), {}
        while inputs.more:
            for number, outcome in inputs.ready(block=True):
                results[feed.pages.pop(number)] = outcome.error or outcome.value
                inputs.done()
    return results


def test_every_page_is_read_and_no_input_is_left_over():
    refused = Future()
    refused.set_exception(error := DocumentError("no page."))
    first, second = document(a="a", b=refused, c="c"), document(a="d")
    feed = PageFeed(iter([(0, 0, first), (0, 1, first), (0, 2, first), (7, 0, second)]))
    assert drained(feed) == {(0, 0): "a", (0, 1): error, (0, 2): "c", (7, 0): "d"} and not feed.pages


def test_no_input_counts_twice_as_it_comes():
    """An engine waits for what is under way, or awaited; an input that was both for a moment held it up for ever."""

    def read_often():
        for _ in range(300):
            test_every_page_is_read_and_no_input_is_left_over()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        reader = threading.Thread(target=read_often, daemon=True)
        reader.start()
        reader.join(60)
        assert not reader.is_alive()
    finally:
        sys.setswitchinterval(interval)


def test_no_page_is_begun_without_room():
    begun, gate = [], threading.Event()
    futures = [Future() for _ in range(4)]
    pages = SimpleNamespace(read=lambda page: begun.append(page) or gate.set() or futures[page])
    feed = PageFeed((0, page, pages) for page in range(4))
    first = next(feed)
    assert gate.wait(10) and begun == [0]
    futures[0].set_result("a")
    assert first.result(10) == "a" and begun == [0]
    feed.close()


def test_a_page_that_nobody_waits_for_is_dropped():
    page = Future()
    feed = PageFeed(iter([(0, 0, document(a=page))]))
    waiting, asked = next(feed), threading.Event()
    page.add_done_callback(lambda page: asked.set())
    until_begun = threading.Event()
    while not feed.pages and not until_begun.wait(0.01):
        pass
    waiting.cancel()
    assert asked.wait(10) and page.cancelled()


def test_what_documents_trip_over_reaches_the_engine():
    def broken():
        yield 0, 0, document(a="a")
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        drained(PageFeed(broken()))


def test_a_page_that_cannot_be_begun_is_not_waited_for():
    def read(page):
        raise RuntimeError("cannot start new thread")

    found = []
    reader = threading.Thread(
        target=lambda: found.append(drained(PageFeed(iter([(0, 0, SimpleNamespace(read=read))])))), daemon=True
    )
    reader.start()
    reader.join(10)
    assert found and str(found[0][0, 0]) == "cannot start new thread"


def test_a_document_that_is_long_in_opening_holds_up_no_other():
    futures = {name: Future() for name in "abc"}
    renderer = SimpleNamespace(ahead=2, open=lambda path, is_quick: futures[path.name])
    works = [Work(number, Path(name)) for number, name in enumerate(futures)]
    for name in "bca":
        futures[name].set_result(name) if name != "a" else None
    opened = opening(renderer, works)
    assert [next(opened)[0].document for _ in range(2)] == [1, 2]
    futures["a"].set_result("a")
    assert [work.document for work, _ in opened] == [0]
    assert [work.document for work, _ in opening(renderer, works, in_order=True)] == [0, 1, 2]
