"""Several devices, a process each: the same bytes as one gives, one ledger, and nothing left running."""

from __future__ import annotations

import os
import time

import pytest

from tests.kits.media_kit import children
from tests.kits.ocr_jobs import SHORT, Jobs, book, commits, left
from tests.kits.servers.server_kit import until


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for i, count in enumerate([9, 1, 6]):
        book(folder / f"{i}.pdf", count, seed=i)
    (folder / "broken.pdf").write_bytes(b"%PDF-1.4 nothing")
    return folder


@pytest.mark.slow
def test_two_devices_give_what_one_gives(jobs, source, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    assert jobs.finish(source, "-o", one, *SHORT, "--workers", 0) == 1
    assert jobs.finish(source, "-o", two, *SHORT, "--workers", 0, "--devices", "cpu,cpu") == 1
    assert left(one) == left(two) and set(left(one)) == {"0.md", "1.md", "2.md"}
    assert set(commits(two).values()) == {1} and len(commits(two)) == 16


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="looks for processes in /proc, which is not here")
def test_a_kill_leaves_nothing_running_and_the_job_goes_on(jobs, source, tmp_path):
    out = tmp_path / "out"
    options = (*SHORT, "--workers", 0, "--devices", "cpu,cpu")
    process = jobs.start(source, "-o", out, *options)
    while not commits(out):
        assert process.is_alive()
        time.sleep(0.02)
    helpers = children(process.pid)
    process.kill()
    process.join()
    assert len(helpers) >= 6  # two engines, four that open documents
    until(lambda: not any(helper.is_alive() for helper in helpers))
    assert jobs.finish(source, "-o", out, *options) == 1
    assert set(commits(out).values()) == {1} and len(commits(out)) == 16 and len(left(out)) == 3
