"""What the processes of several devices answer, as the job is told of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest

from vlm_app.ocr.events import TIMEOUT, Opened, PageFailed, PageRead, Unreadable, Work
from vlm_app.ocr.measures import Measures
from vlm_app.ocr.readers import device_process, devices
from vlm_app.ocr.readers.device import Device
from vlm_app.ocr.readers.device_process import READY, ROUND_DONE

PAGES = 6  # of the document: two chunks
WORKS = (Work(7, Path("s3://a")),)


def served(pipe: Connection, answer: Callable[[Work], list[object]]) -> None:
    """Is a device's process: answers one round."""
    pipe.send(READY)
    assert pipe.recv() == {}
    while (work := pipe.recv()) is not None:
        for event in answer(work):
            pipe.send(event)
    pipe.send(ROUND_DONE)


def opened_document() -> Future:
    future: Future = Future()
    future.set_result(
        SimpleNamespace(
            num_pages=PAGES,
            num_attachments=0,
            digest="d",
            local=Path("copy"),
            named=lambda text: text.replace("copy", "s3://a"),
        )
    )
    return future


@pytest.fixture
def events(monkeypatch):
    """Returns what a reader of one device, which may hold so many pages, says of works, whose chunks the device answers
    so."""
    opener = SimpleNamespace(ahead=0, open=lambda path, is_quick: opened_document(), close=lambda: None)
    process = SimpleNamespace(join=lambda seconds: None, is_alive=lambda: False)

    def read(
        answer: Callable[[Work], list[object]],
        room: int = 64,
        works: tuple[Work, ...] = WORKS,
        limit: int | None = None,
    ) -> list[object]:
        ours, theirs = Pipe()
        threading.Thread(target=served, args=(theirs, answer), daemon=True).start()
        monkeypatch.setattr(devices, "RenderPool", lambda workers: opener)
        monkeypatch.setattr(Device, "started", lambda *_: Device("cuda:0", process, ours, room))
        reader = devices.DeviceReader(SimpleNamespace(), ("cuda:0",))
        found = list(reader.read(works, {}, limit))
        assert not reader._devices[0].pages
        reader.close()
        return found

    read.opener = opener
    return read


def read_pages(work: Work) -> list[object]:
    return [PageRead(work.document, int(page) - 1, "a", "a", "eos", 1) for page in (work.pages or "").split(",")]


def test_a_document_that_is_gone_costs_all_its_pages(events):
    found = events(lambda work: [Unreadable(work.document, "missing", "copy does not exist.", work.pages)])
    failures = [PageFailed(7, page, "missing", "s3://a does not exist.") for page in range(PAGES)]
    assert found == [Opened(7, PAGES, tuple(range(PAGES)), "d"), *failures]


def test_a_chunk_that_took_too_long_costs_no_other(events):
    def answer(work: Work) -> list[object]:
        is_first = (work.pages or "").startswith("1,")
        return [Unreadable(work.document, TIMEOUT, "copy took long.", work.pages)] if is_first else read_pages(work)

    found = events(answer)[1:]
    assert [event.page for event in found if isinstance(event, PageFailed)] == [0, 1, 2, 3]
    assert [event.page for event in found if isinstance(event, PageRead)] == [4, 5]


def test_pages_that_a_round_has_lost_take_no_room_in_the_next(events):
    assert [event.page for event in events(lambda work: read_pages(work)[1:])[1:]] == [1, 2, 3, 5]


def test_a_document_that_has_fewer_pages_by_now_holds_up_no_other(events):
    def answer(work: Work) -> list[object]:
        """Opens the document as the device finds it: of the first chunk a page is left, of the second none."""
        if (work.pages or "").startswith("1,"):
            return [Opened(work.document, 1, (0,), "other"), *read_pages(work)[:1]]
        return [Unreadable(work.document, "damaged", "no such pages.", work.pages)]

    found = events(answer, room=3)[1:]
    assert sorted(event.page for event in found) == list(range(PAGES))
    assert [event.page for event in found if isinstance(event, PageRead)] == [0]
    assert {event.kind for event in found if isinstance(event, PageFailed)} == {"changed", "damaged"}


def test_a_page_that_is_answered_twice_is_told_of_once(events):
    found = events(lambda work: read_pages(work) * 2)[1:]
    assert [event.page for event in found] == list(range(PAGES))


def test_a_limit_is_of_the_first_works_however_long_they_take_to_open(events):
    late: Future = Future()
    events.opener.ahead = 1
    events.opener.open = lambda path, is_quick: late if path.name == "a" else opened_document()
    threading.Timer(0.2, lambda: late.set_result(opened_document().result())).start()
    works = (Work(1, Path("a")), Work(2, Path("b")))
    found = events(read_pages, works=works, limit=PAGES)
    assert {event.document for event in found} == {1}


def test_a_process_whose_parent_has_gone_ends_without_a_word(monkeypatch):
    class Gone(Exception):
        pass

    def leave(code: int) -> None:
        raise Gone

    monkeypatch.setattr("os._exit", leave)
    ours, theirs = Pipe()
    ours.close()
    reader = SimpleNamespace(measures=Measures, events=lambda works, sampling: iter(()))
    with pytest.raises(Gone):
        device_process._read(reader, iter(()), {}, theirs)
