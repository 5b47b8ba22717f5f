"""Documents that change, go or are interrupted between their first page and their output."""

from __future__ import annotations

from tests.unit.test_ocr_limit import outputs, run, scans  # noqa: F401  the last is a fixture
from tests.unit.test_ocr_slow_pages import SlowReader
from vlm_app.ocr.events import Opened, Unreadable


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
