"""Documents that change, go or are interrupted between their first page and their output."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from tests.unit.ocr.test_ocr_limit import FakeReader, outputs, run, scans  # noqa: F401  the last is a fixture
from tests.unit.ocr.test_ocr_slow_pages import SlowReader
from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.documents.naming import Source, name_all
from vlm_app.ocr.events import Opened, Unreadable
from vlm_app.ocr.job import Job
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.outputs import OCCUPIED, Outputs


class SecondTime(SlowReader):
    """A page of the first document is asked for again; when it is opened for that, it is no longer what it was."""

    def __init__(self, instead):
        super().__init__(slow=[(1, 1)])
        self.instead = instead

    def read(self, works, sampling, limit=None):
        is_second = bool(self.read_pages)
        for event in super().read(works, sampling, limit):
            yield self.instead if is_second and isinstance(event, Opened) and event.document == 1 else event


def test_a_document_that_changes_before_its_slow_pages_are_read_costs_itself_alone(tmp_path, scans):  # noqa: F811
    summary = run(SecondTime(Opened(1, 3, (0, 1, 2), "other content")), scans, tmp_path / "out")
    assert [(failure.document.name, failure.kind) for failure in summary.failures] == [("a.pdf", "changed")]
    assert outputs(tmp_path / "out").keys() == {"b.md", "c.md"} and (summary.failed, summary.done) == (1, 3)


def test_a_document_that_goes_before_its_slow_pages_are_read_costs_itself_alone(tmp_path, scans):  # noqa: F811
    summary = run(SecondTime(Unreadable(1, "missing", "a.pdf does not exist.")), scans, tmp_path / "out")
    assert [(failure.document.name, failure.kind) for failure in summary.failures] == [("a.pdf", "missing")]
    assert outputs(tmp_path / "out").keys() == {"b.md", "c.md"} and (summary.failed, summary.done) == (1, 3)


def test_a_document_that_changes_before_its_loops_are_read_again_is_not_of_two_contents(tmp_path, scans):  # noqa: F811
    class Changing(FakeReader):
        """Finds another content at the second attempt."""

        def read(self, works, sampling, limit=None):
            for event in super().read(works, sampling, limit):
                yield replace(event, digest="other") if isinstance(event, Opened) and sampling["seed"] else event

    summary = run(Changing(loops=[(1, 1)]), scans, tmp_path / "out")
    assert [(failure.document.name, failure.kind) for failure in summary.failures] == [("a.pdf", "changed")]
    assert outputs(tmp_path / "out").keys() == {"b.md", "c.md"}
    assert run(FakeReader(), scans, tmp_path / "out").pages == 3


def interrupted(scans, out, when):  # noqa: F811
    """Runs a job whose outputs are written `when` says so, until Ctrl-C."""
    documents = name_all(map(Source, scans))
    with closing(Ledger(out / ".vlm-ocr" / "ledger.sqlite")) as ledger:
        placed = Outputs(out, "md", ledger)
        placed.write = when(placed.write)
        return Job(SlowReader(), documents, JobConfig(), ledger, placed).run()


def test_a_document_that_was_being_written_at_ctrl_c_is_not_written_twice(tmp_path, scans):  # noqa: F811
    def when(write):
        def write_and_stop(*arguments):
            write(*arguments)
            raise KeyboardInterrupt

        return write_and_stop

    summary = interrupted(scans, tmp_path / "out", when)
    assert summary.interrupted and not summary.partial and outputs(tmp_path / "out").keys() == {"a.md"}


def test_a_partial_text_that_cannot_be_written_costs_no_other(tmp_path, scans):  # noqa: F811
    class Stopped(SlowReader):
        """Brings a page of each document, then Ctrl-C."""

        def read(self, works, sampling, limit=None):
            for work in works:
                yield Opened(work.document, 3, (0, 1, 2), f"content {work.document}")
                yield self._answer(work, 0, sampling)
            raise KeyboardInterrupt

    out = tmp_path / "out"
    out.mkdir()
    (out / "b.partial.md").write_text("mine")
    summary = run(Stopped(), scans, out)
    assert summary.interrupted and not summary.stopped and outputs(out)["b.partial.md"] == "mine"
    assert [path.name for path in summary.partial] == ["a.partial.md", "c.partial.md"]
    assert [(failure.document.name, failure.kind) for failure in summary.failures] == [("b.pdf", OCCUPIED)]
    assert summary.shares["unfinished"] == 3
