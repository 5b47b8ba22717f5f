"""A job that is killed goes on where it was: the same bytes, and no page that was committed is read again."""

from __future__ import annotations

import random

import pytest

from tests.kits.ocr_jobs import SHORT, Jobs, book, commits, kill_group, left, mixture

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("cache"))


def killed_and_whole(jobs, folder, pages, kills, options):
    """Reads the same documents with and without kills -> both output folders."""
    source, killed, whole = folder / "in", folder / "killed", folder / "whole"
    source.mkdir()
    for i, count in enumerate(pages):
        book(source / f"{i}.pdf", count, seed=i)
    assert jobs.finish(source, "-o", whole, *options) == 0
    read_with_kills(jobs, source, killed, sum(pages), kills=kills, options=options)
    return killed, whole


def read_with_kills(jobs, source, killed, pages, *, kills, options):
    """Reads documents in a job that is killed so often; checks that no page is read twice."""
    chance, arguments = random.Random(pages), (source, "-o", killed, *options)
    for left_over in range(kills, 0, -1):
        before = commits(killed)
        share = (pages - len(before)) // (left_over + 1)
        assert jobs.kill_after_pages(killed, chance.randint(0, max(share, 0)), chance.uniform(0, 0.03), *arguments)
        assert commits(killed).items() >= before.items()
    assert jobs.finish(*arguments) == 0
    assert set(commits(killed).values()) == {1} and len(commits(killed)) == pages


def test_a_killed_job_goes_on(jobs, tmp_path):
    killed, whole = killed_and_whole(jobs, tmp_path, [14, 1, 9], 2, (*SHORT, "--workers", "0"))
    assert left(killed) == left(whole) and set(left(whole)) == {"0.md", "1.md", "2.md"}


def test_300_pages_and_20_kills(jobs, tmp_path):
    options = (*SHORT, "--format", "jsonl", "--workers", "1")
    killed, whole = killed_and_whole(jobs, tmp_path, [120, 1, 60, 40, 79], 20, options)
    assert {name: text.count(b"\n") for name, text in left(whole).items()} == {
        "0.jsonl": 120, "1.jsonl": 1, "2.jsonl": 60, "3.jsonl": 40, "4.jsonl": 79,
    }  # fmt: skip
    assert left(killed) == left(whole)


def test_worker_counts_and_20_kills_of_all_processes_give_the_same_bytes(tmp_path):
    jobs, source = Jobs(tmp_path / "cache", kill=kill_group), tmp_path / "in"
    pages, options = mixture(source), ("--device", "cpu", "--batch-size", "4", "--max-new-tokens", "40")
    whole = tmp_path / "whole"
    assert jobs.finish(source, "-o", whole, *options, "--workers", "0") == 0
    assert len(left(whole)) == 21 and len(set(left(whole).values())) > 16
    for places in (("--workers", "1"), ("--workers", "4"), ("--workers", "16"), ("--devices", "cpu,cpu")):
        out = tmp_path / "-".join(places)
        assert jobs.finish(source, "-o", out, *options, *places) == 0
        assert left(out) == left(whole), places
    killed = tmp_path / "killed"
    read_with_kills(jobs, source, killed, pages, kills=20, options=(*options, "--workers", "4"))
    assert left(killed) == left(whole)
