"""Processes that one command has started, and that meet before the first one has time for them."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from tests.kits.servers.server_kit import free_port
from vlm.errors import EngineError
from vlm.parallel import environment
from vlm.parallel.environment import LaunchedRank, Meeting, meet

SHORT = timedelta(seconds=0.5)


@pytest.fixture
def meetings(monkeypatch):
    """Meetings of two ranks, whose store gives up soon."""
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    ranks = [LaunchedRank("srun", rank, 2, rank) for rank in (0, 1)]
    with ThreadPoolExecutor(2) as pool:
        found = [*pool.map(lambda own: Meeting(own, own.store()), ranks)]
    for each in found:
        each.store.set_timeout(SHORT)
    return found


def test_others_wait_for_longer_than_they_look_for_each_other(meetings):
    first, second = meetings
    done = []

    def wait() -> None:
        second.wait_for_first()
        done.append("the second one goes on")

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(2 * SHORT.total_seconds())  # in which a store gives up
    done.append("the first one comes")
    first.wait_for_first()
    waiting.join()
    assert done == ["the first one comes", "the second one goes on"]


def test_others_end_with_the_first_one(meetings):
    second = meetings.pop()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(second.wait_for_first)
        meetings.clear()  # the process that holds the store has gone
        with pytest.raises(
            EngineError, match=r"rank 1 of 2 waits for the first one, which has gone; .* start all of them"
        ):
            waiting.result()


def test_a_process_that_was_started_by_itself_meets_nobody(monkeypatch):
    for names in environment.VARIABLES.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    assert meet() is None
