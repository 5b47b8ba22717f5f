"""A job that is killed goes on where it was: the same bytes, and no page that was committed is read again."""

from __future__ import annotations

import random

import pytest

from tests.ocr_jobs import SHORT, Jobs, book, commits, left


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return Jobs(tmp_path_factory.mktemp("cache"))


def killed_and_whole(jobs, folder, pages, kills, options):
    """Reads the same documents with and without kills -> both output folders; checks that nothing is done twice."""
    source, killed, whole = folder / "in", folder / "killed", folder / "whole"
    source.mkdir()
    for i, count in enumerate(pages):
        book(source / f"{i}.pdf", count, seed=i)
    assert jobs.finish(source, "-o", whole, *options) == 0
    chance, done = random.Random(len(pages)), 0
    while done < kills:
        share = (sum(pages) - len(commits(killed))) // (kills - done + 1)
        before = commits(killed)
        arguments = (source, "-o", killed, *options)
        assert jobs.kill_after_pages(killed, chance.randint(0, max(share, 0)), chance.uniform(0, 0.03), *arguments)
        assert commits(killed).items() >= before.items()
        done += 1
    assert jobs.finish(source, "-o", killed, *options) == 0
    assert set(commits(killed).values()) == {1} and len(commits(killed)) == sum(pages)
    return killed, whole


def test_a_killed_job_goes_on(jobs, tmp_path):
    killed, whole = killed_and_whole(jobs, tmp_path, [14, 1, 9], 4, (*SHORT, "--workers", "0"))
    assert left(killed) == left(whole) and set(left(whole)) == {"0.md", "1.md", "2.md"}


@pytest.mark.slow
def test_300_pages_and_20_kills(jobs, tmp_path):
    options = (*SHORT, "--format", "jsonl", "--workers", "1")
    killed, whole = killed_and_whole(jobs, tmp_path, [120, 1, 60, 40, 79], 20, options)
    assert {name: text.count(b"\n") for name, text in left(whole).items()} == {
        "0.jsonl": 120, "1.jsonl": 1, "2.jsonl": 60, "3.jsonl": 40, "4.jsonl": 79,
    }  # fmt: skip
    assert left(killed) == left(whole)
