"""Inputs that are prepared ahead of the engine, in whatever order they come."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from vlm.api.ahead import prefetch
from vlm.api.ahead.pooled import PooledMap
from vlm.api.ahead.prefetch import Prefetch
from vlm.errors import ImageError


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as pool:
        yield pool


def drained(feed: Prefetch) -> dict[int, Any]:
    """Takes what is left; an error stands for itself."""
    results: dict[int, Any] = {}
    while feed.more:
        for index, outcome in feed.ready(block=True):
            results[index] = outcome.error or outcome.value
            feed.done()
    return results


def test_an_input_may_be_a_future_which_holds_up_no_other(pool):
    slow, refused = Future(), Future()
    feed = Prefetch(pool, enumerate(["a", slow, "b", refused, "c"]), lambda _, value: value.upper(), window=5)
    taken = {}
    while len(taken) < 3:
        taken |= {index: outcome.result() for index, outcome in feed.ready(block=True)}
    assert taken == {0: "A", 2: "B", 4: "C"} and feed.ready(block=False) == [] and feed.num_preparing == 2
    refused.set_exception(error := ImageError("no image."))
    slow.set_result("s")
    assert drained(feed) == {1: "S", 3: error}


def test_where_several_cannot_be_prepared_at_once_each_is_by_itself(pool):
    """Nobody waits for ever for a task that is lost."""

    def together(values: list[str]) -> Any:
        raise KeyError(*values)

    feed = Prefetch(pool, enumerate("abcd"), lambda _, value: value.upper(), window=4, most=2, together=together)
    assert drained(feed) == dict(enumerate("ABCD"))


def test_no_more_are_under_way_than_the_window_says(pool):
    begun = []
    futures = [Future() for _ in range(6)]
    feed = Prefetch(pool, enumerate(begun.append(i) or futures[i] for i in range(6)), lambda _, value: value, window=2)
    assert begun == [0, 1]
    for future in futures:
        future.set_result(future)
    assert drained(feed) == dict(enumerate(futures)) and begun == list(range(6))


def test_what_follows_from_an_input_goes_before_the_others(pool):
    """And the feed has more to give until that has been taken, too."""
    feed = Prefetch(pool, enumerate("abc"), lambda index, value: (index, value), window=1)
    order = []
    while feed.more:
        for index, outcome in feed.ready(block=True):
            order.append(outcome.result())
            feed.put_first([(-1, "x"), (-2, "y")] if index == 0 else [(-3, "z")] if index == 2 else [])
            feed.done()
    assert order == [(0, "a"), (-1, "x"), (-2, "y"), (1, "b"), (2, "c"), (-3, "z")]


def test_what_nobody_waits_for_is_not_prepared(pool):
    waiting, prepared = Future(), []
    feed = Prefetch(pool, enumerate([waiting]), lambda _, value: prepared.append(value), window=2)
    feed.close()
    assert waiting.cancelled() and prepared == []


def test_short_work_is_shared_out_in_parts_and_waited_for(pool):
    """An engine that is idle begins with all of it."""
    feed = Prefetch(pool, enumerate(range(100)), lambda _, value: value + 1, window=100, most=16)
    inputs = feed.ready(block=True)
    assert sorted((index, outcome.result()) for index, outcome in inputs) == [(i, i + 1) for i in range(100)]
    assert not feed.more or feed.ready(block=False) == []


def test_who_waits_for_short_work_does_what_no_thread_has_begun(pool):
    """However long the threads are at something else; of what is closed nothing is done any more."""
    gate, prepared = threading.Event(), []
    for _ in range(2):
        pool.submit(gate.wait, 60)
    feed = Prefetch(pool, enumerate(range(9)), lambda _, value: value + 1, window=9, most=16)
    closed = Prefetch(pool, enumerate(range(9)), lambda _, value: prepared.append(value), window=9, most=16)
    assert drained(feed) == {i: i + 1 for i in range(9)}
    closed.close()
    gate.set()
    pool.shutdown()
    assert prepared == []


def test_of_long_work_what_comes_soon_goes_along(pool, monkeypatch):
    """An engine that is idle begins with all that is as good as ready, and not with what takes longer."""
    monkeypatch.setattr(prefetch, "SOON", 1.0)
    slow = threading.Event()
    feed = Prefetch(pool, enumerate("abcd"), lambda _, value: slow.wait(60) if value == "c" else value, window=4)
    assert [index for index, _ in feed.ready(block=True)] == [0, 1, 3]
    assert feed.ready(block=False) == [] and feed.more
    slow.set()
    assert drained(feed) == {2: True}


@pytest.mark.parametrize("has_time", [True, False])
def test_who_uses_inputs_as_they_come_says_whether_there_is_time_for_another(pool, monkeypatch, has_time):
    """By a clock that each use of an input takes further than anybody waits."""
    used, gate = [], threading.Event()
    monkeypatch.setattr(prefetch, "SOON", 60.0)
    monkeypatch.setattr(prefetch, "time", SimpleNamespace(monotonic=lambda: 100.0 * len(used)))

    def use(value: str) -> bool:
        used.append(value)
        if has_time and len(used) == 2:
            gate.set()  # the third one is on its way now
        return has_time

    feed = Prefetch(pool, enumerate("abc"), lambda _, value: (value != "c" or gate.wait(60)) and value, window=3)
    taken = [outcome.value for _, outcome in feed.ready(block=True, use=use)]
    assert taken == used and sorted(taken) == (["a", "b", "c"] if has_time else ["a", "b"])
    gate.set()
    for _ in taken:
        feed.done()
    assert sorted([*taken, *drained(feed).values()]) == ["a", "b", "c"]


def test_an_error_is_its_own_inputs_alone(pool):
    feed = Prefetch(pool, enumerate("abc"), lambda _, value: {"a": 1, "c": 3}[value], window=3, most=16)
    results = drained(feed)
    assert results[0] == 1 and results[2] == 3 and isinstance(results[1], KeyError)


def test_one_alone_that_its_caller_waits_for_wakes_no_thread(pool, monkeypatch):
    """Of several, or beside others, each has its thread."""
    threads, submit = [], pool.submit
    monkeypatch.setattr(pool, "submit", lambda *call: threads.append(call) or submit(*call))
    squares = PooledMap[int, int](pool, lambda value: value**2)
    squares.begin([(0, 3)], awaited=True)
    assert squares.num_under_way == 1 and not squares.num_ready
    assert squares.take() == [(0, (9, None))] and not threads
    squares.begin([(1, 4)])
    squares.begin([(2, 5)], awaited=True)
    squares.begin([(3, 6), (4, 7)], awaited=True)
    assert len(threads) == 4 and sorted(squares.take()[0][1].value for _ in range(4)) == [16, 25, 36, 49]


def test_what_its_caller_is_to_make_is_made_whatever_else_begins_before(pool):
    squares = PooledMap[int, int](pool, lambda value: value**2)
    squares.begin([(0, 3)], awaited=True)
    squares.begin([])
    squares.begin([(1, 4), (2, 5)])
    assert sorted(squares.take()[0][1].value for _ in range(3)) == [9, 16, 25] and not squares.num_under_way


@pytest.mark.parametrize(("count", "own"), [(1, True), (2, False)])
def test_who_asks_for_one_input_alone_prepares_it(pool, count, own):
    feed = Prefetch(pool, enumerate(range(count)), lambda index, value: threading.get_ident(), window=4)
    by_index = drained(feed)
    assert len(by_index) == count and (by_index[0] == threading.get_ident()) == own


def test_what_follows_from_one_input_alone_is_prepared_by_threads(pool):
    feed = Prefetch(pool, enumerate("a"), lambda index, value: (value, threading.get_ident()), window=4)
    ((_, outcome),) = feed.ready(block=True)
    feed.put_first([(1, "b"), (2, "c")])
    feed.done()
    rest = drained(feed)
    assert outcome.value == ("a", threading.get_ident())
    assert {i: value for i, (value, _) in rest.items()} == {1: "b", 2: "c"}
    assert threading.get_ident() not in {thread for _, thread in rest.values()}
