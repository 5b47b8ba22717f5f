"""Several devices, a process each: the same bytes as one gives, one ledger, and nothing left running."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.ocr_jobs import SHORT, Jobs, book, commits, left


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


def children(process) -> list[int]:
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")  # a thread each
    return [int(pid) for children in tasks for pid in children.read_text().split()]


def running(pid: int) -> bool:
    """Zombies that nobody has waited for do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


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
    helpers = children(process)
    process.kill()
    process.join()
    assert len(helpers) >= 6  # two engines, four that open documents
    while any(map(running, helpers)):
        time.sleep(0.05)
    assert jobs.finish(source, "-o", out, *options) == 1
    assert set(commits(out).values()) == {1} and len(commits(out)) == 16 and len(left(out)) == 3
