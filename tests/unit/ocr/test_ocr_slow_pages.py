"""Pages that take long hold up no others: a job reads them when all else is done."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.kits.media_kit import nested_forms
from tests.unit.ocr.test_ocr import image
from tests.unit.ocr.test_ocr_limit import FakeReader, outputs, run, scans  # noqa: F401  the last is a fixture
from vlm.errors import DocumentError
from vlm.processing.workers.process import Budget, WorkerProcess
from vlm.stage_clock import StageClock
from vlm_app.ocr.documents import render_pool
from vlm_app.ocr.documents.pages import opening
from vlm_app.ocr.documents.render_pool import PooledDocument, RenderPool
from vlm_app.ocr.events import TIMEOUT, PageFailed, Unreadable, Work

ENDLESS = {(1, 1), (3, 2)}  # pages that never come


class SlowReader(FakeReader):
    """Some pages take too long in a quick round, as do some documents; of the pages some always do."""

    def __init__(self, slow=(), slow_documents=(), endless=()):
        super().__init__()
        self.slow, self.slow_documents, self.endless = {*slow, *endless}, set(slow_documents), set(endless)

    def _events(self, works, sampling, room):
        def opened():
            for work in works:
                if work.is_quick and work.document in self.slow_documents:
                    late.append(Unreadable(work.document, TIMEOUT, "it took too long."))
                else:
                    yield work

        late = []
        yield from super()._events(opened(), sampling, room)
        yield late

    def _answer(self, work, page, sampling):
        answer, place = super()._answer(work, page, sampling), (work.document, page)
        is_late = place in self.endless or (work.is_quick and place in self.slow)
        return PageFailed(*place, TIMEOUT, "it took too long.") if is_late else answer


def test_slow_pages_are_read_last(tmp_path, scans):  # noqa: F811
    whole, reader = tmp_path / "whole", SlowReader(slow=[(1, 1), (2, 0)], slow_documents=[3])
    run(FakeReader(), scans, whole)
    summary = run(reader, scans, tmp_path / "out")
    quick = [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert reader.read_pages == [*quick, (1, 1), (2, 0), (3, 0), (3, 1), (3, 2)]
    assert outputs(tmp_path / "out") == outputs(whole) and summary.is_complete and summary.pages == 9


def test_a_page_that_never_comes_is_told_of_once(tmp_path, scans):  # noqa: F811
    reader = SlowReader(endless=ENDLESS)
    summary = run(reader, scans, tmp_path / "out")
    assert len(reader.read_pages) == 9 + len(ENDLESS)
    failures = sorted((failure.document.name, failure.page, failure.kind) for failure in summary.failures)
    assert failures == [("a.pdf", 2, TIMEOUT), ("c.pdf", 3, TIMEOUT)]
    assert (summary.documents, summary.bad_pages, summary.pages) == (3, 2, 7)


def test_slow_pages_count_for_a_limit(tmp_path, scans):  # noqa: F811
    out, whole = tmp_path / "out", tmp_path / "whole"
    run(FakeReader(), scans, whole)
    reader = SlowReader(slow=[(1, 1), (2, 0)])
    summary = run(reader, scans, out, limit=4)
    assert reader.read_pages == [(1, 0), (1, 1), (1, 2), (2, 0), (1, 1), (2, 0)]
    assert summary.is_limited and summary.pages == 4 and outputs(out).keys() == {"a.md", "b.partial.md"}
    run(reader, scans, out)
    assert outputs(out) == outputs(whole)


def test_a_document_that_is_long_in_coming_holds_up_no_other():
    futures = [Future() for _ in range(4)]
    renderer = SimpleNamespace(ahead=2, open=lambda path, is_quick: futures[int(path.name)])
    works = opening(renderer, (Work(number, Path(str(number)), is_quick=True) for number in range(4)))
    for number in (1, 2, 3):
        futures[number].set_result(None)
    assert [next(works)[0].document for _ in range(3)] == [1, 2, 3]
    futures[0].set_result(None)
    assert [work.document for work, _ in works] == [0]


@pytest.fixture
def impatient(monkeypatch):
    """Leaves little time to pages from its call on: until then a document has all that it needs to be opened."""
    return lambda: monkeypatch.setattr(render_pool, "QUICK_SECONDS", 0.2)


def kinds(document, pages) -> list[str]:
    errors = [document.read(page).exception() for page in pages]
    assert all(isinstance(error, DocumentError) for error in errors)
    return [error.kind for error in errors]


def sentence_of(document, worker, page) -> str:
    with pytest.raises(DocumentError) as error:
        document.read_by(worker, page)
    return str(error.value)


def test_a_document_of_endless_pages_is_soon_given_up_in_a_quick_round(tmp_path, impatient):
    (tmp_path / "a.pdf").write_bytes(nested_forms(count=50))
    with closing(RenderPool(1)) as pool:
        document = pool.open(tmp_path / "a.pdf", is_quick=True).result()
        impatient()
        assert kinds(document, range(50)) == [TIMEOUT] * 50
        assert pool.state().restarts == render_pool.MOST_TIMEOUTS
        assert pool.open(image(tmp_path / "a.png")).result().num_pages == 1


def test_later_its_first_pages_have_all_time_and_the_others_little(tmp_path, impatient):
    (tmp_path / "a.pdf").write_bytes(nested_forms(count=6))
    pool = SimpleNamespace(images=pickle.dumps(None), clock=StageClock())
    with closing(WorkerProcess(Budget(), render_pool.__name__)) as worker:
        document = PooledDocument(pool, worker, tmp_path / "a.pdf", is_quick=False)
        worker.budget = Budget(seconds=1.0)
        impatient()
        said = [sentence_of(document, worker, page) for page in range(6)]
    assert [sentence.partition("took longer than ")[2] for sentence in said] == ["1 s to render."] * 3 + [
        "0.2 s to render."
    ] * 3
