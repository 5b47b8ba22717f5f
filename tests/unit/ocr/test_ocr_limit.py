"""Jobs that read so many pages and stop, and what the same command makes of the rest."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import closing

import pytest

from vlm.errors import InputError
from vlm_app.ocr.config import JobConfig
from vlm_app.ocr.documents.naming import Source, name_all
from vlm_app.ocr.events import LOOP, Opened, PageFailed, PageRead, Work
from vlm_app.ocr.job import Job
from vlm_app.ocr.ledger.ledger import Ledger
from vlm_app.ocr.measures import Measures
from vlm_app.ocr.outputs import Outputs
from vlm_app.ocr.report import complaints


class FakeReader:
    """Reads documents of three pages; some fail, some repeat themselves at the first attempt."""

    engines = 1

    def __init__(self, bad: Iterable[tuple[int, int]] = (), loops: Iterable[tuple[int, int]] = ()):
        self.bad, self.loops, self.read_pages = set(bad), set(loops), list[tuple[int, int]]()

    def read(self, works, sampling, limit=None):
        return itertools.chain.from_iterable(self._events(works, sampling, limit))

    def measures(self):
        return Measures(engines=1)

    def close(self):
        pass

    def _events(self, works, sampling, room):
        for work in works:
            pages = [int(page) - 1 for page in work.pages.split(",")] if work.pages else range(3)
            due = [page for page in pages if page not in work.done_pages][:room]
            yield [Opened(work.document, 3, tuple(pages), f"content {work.document}")]
            yield [self._answer(work, page, sampling) for page in due]
            if room is not None and not (room := room - len(due)):
                return

    def _answer(self, work: Work, page: int, sampling):
        place = (work.document, page)
        self.read_pages.append(place)
        if place in self.bad:
            return PageFailed(*place, "damaged", "no page.")
        reason = LOOP if place in self.loops and not sampling["seed"] else "eos"
        return PageRead(*place, f"text {place}", f"raw {place}", reason, tokens=2)


@pytest.fixture
def scans(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.pdf").write_text(name)
    return sorted(folder.iterdir())


def run(reader, scans, out, **options):
    config, documents = JobConfig(**options), name_all(map(Source, scans))
    with closing(Ledger(out / ".vlm-ocr" / "ledger.sqlite")) as ledger:
        return Job(reader, documents, config, ledger, Outputs(out, config.format, ledger)).run()


def outputs(out):
    return {path.name: path.read_text() for path in out.iterdir() if path.is_file()}


def test_a_limited_job_stops_and_the_same_command_goes_on(tmp_path, scans):
    out, whole, reader = tmp_path / "out", tmp_path / "whole", FakeReader()
    summary = run(reader, scans, out, limit=4)
    assert reader.read_pages == [(1, 0), (1, 1), (1, 2), (2, 0)] and outputs(out).keys() == {"a.md", "b.partial.md"}
    assert summary.is_limited and summary.is_complete and (summary.documents, summary.done, summary.total) == (1, 1, 3)
    assert "the limit of pages is reached; finished pages of the others are in" in next(complaints(summary))
    run(reader, scans, out, limit=4)
    assert outputs(out).keys() == {"a.md", "b.md", "c.partial.md"}
    last = run(reader, scans, out)
    assert not last.is_limited and last.is_complete and len(set(reader.read_pages)) == len(reader.read_pages) == 9
    run(FakeReader(), scans, whole)
    assert outputs(out) == outputs(whole)


def test_a_limit_that_is_not_reached_changes_nothing(tmp_path, scans):
    for limit in (9, 10):
        summary = run(FakeReader(), scans, tmp_path / str(limit), limit=limit)
        assert not summary.is_limited and summary.is_complete and summary.documents == 3


def test_bad_pages_count_and_retries_do_not(tmp_path, scans):
    reader = FakeReader(bad=[(1, 1)], loops=[(1, 0), (2, 0)])
    summary = run(reader, scans, tmp_path / "out", limit=4)
    # the second document is not whole: its page is tried again by the run that reads the rest
    assert reader.read_pages == [(1, 0), (1, 1), (1, 2), (2, 0), (1, 0)]
    assert summary.is_limited and not summary.is_complete and len(summary.failures) == 1
    run(reader, scans, tmp_path / "out")
    run(fresh := FakeReader(bad=[(1, 1)], loops=[(1, 0), (2, 0)]), scans, tmp_path / "whole")
    assert outputs(tmp_path / "out") == outputs(tmp_path / "whole") and len(fresh.read_pages) == len(reader.read_pages)


def test_lost_pages_are_told_with_a_limit_too(tmp_path, scans):
    class Losing(FakeReader):
        def read(self, works, sampling, limit=None):
            return (e for e in super().read(works, sampling, limit) if getattr(e, "page", None) != 2)

    summary = run(Losing(), scans, tmp_path / "out", limit=9)
    assert not summary.is_limited and [failure.kind for failure in summary.failures] == ["unfinished"] * 3


def test_a_limit_is_a_number_of_pages():
    with pytest.raises(InputError, match="--limit is 0; it must be at least 1"):
        JobConfig(limit=0)
