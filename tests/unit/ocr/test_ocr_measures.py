"""What a job measures of itself, and what it is said to be bound by."""

from __future__ import annotations

import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from tests.kits.servers.server_kit import until
from vlm.api.ahead.prefetch import Prefetch
from vlm.executor.timing import DeviceTimer
from vlm.stage_clock import StageClock
from vlm_app.ocr.bottleneck import bottleneck
from vlm_app.ocr.measures import Interval, Measures, Queues
from vlm_app.ocr.readers.meter import Meter
from vlm_app.ocr.report import Summary, live, totals
from vlm_app.ocr.time_series import TimeSeries


def spend(seconds: float) -> None:
    """Works for so much CPU time of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


# --- the clock ---
def test_a_stage_within_another_is_counted_once():
    clock = StageClock()
    began = time.thread_time()
    with clock("decode"):
        spend(0.01)
        with clock("post-process"):
            spend(0.03)
        with clock("open"):
            pass
        time.sleep(0.05)
    whole = time.thread_time() - began
    seconds = clock.seconds()
    assert seconds.keys() == {"decode", "post-process", "open"}
    assert seconds["post-process"] >= 0.03 and seconds["decode"] >= 0.01
    assert sum(seconds.values()) <= whole  # neither counted twice, nor as long as it slept


def test_threads_and_other_processes_add_to_one_clock():
    clock = StageClock()

    def work():
        with clock("prepare"):
            spend(0.01)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.add({"draw": 0.25, "prepare": 1.0})
    assert clock.seconds()["draw"] == 0.25 and clock.seconds()["prepare"] >= 1.02


# --- what a pipeline tells ---
def test_inputs_that_are_being_prepared_and_those_that_wait():
    gate = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        feed = Prefetch(pool, enumerate("abc"), lambda _, name: name != "b" and gate.wait(10), window=2)
        until(lambda: feed.num_prepared == 1)
        assert feed.num_preparing == 1, "the window has room for two"
        gate.set()
        assert feed.ready(block=True)[0][0] == 1, "the first one holds up nobody"


def test_device_time_that_is_through_is_told_without_waiting():
    timer = DeviceTimer(torch.device("cpu"))
    for done in (True, False):
        end = SimpleNamespace(query=lambda done=done: done, synchronize=lambda done=done: done or pytest.fail("waits"))
        begin = SimpleNamespace(elapsed_time=lambda end: 1500)
        timer._pending.append(("decode", begin, end))
    assert timer.finished() == {"decode": 1.5} == timer.finished() and len(timer._pending) == 1


def test_a_meter_adds_up_the_calls_of_a_job():
    """The pipeline's own device time begins anew with each call."""
    usage = SimpleNamespace(running=3, waiting=2)
    pipeline = SimpleNamespace(
        clock=StageClock(), device_seconds={}, compile_seconds=0.0, feed=None, usage=lambda: usage,
        capabilities=SimpleNamespace(max_batch_size=4),
    )  # fmt: skip
    renderer = SimpleNamespace(clock=StageClock(), ahead=5)
    renderer.clock.add({"draw": 0.5})
    meter = Meter(pipeline, renderer)
    for number in range(2):
        for index, _ in meter.watched(enumerate("ab")):
            pipeline.device_seconds = {"decode": 1.0 + index}
            pipeline.feed = SimpleNamespace(num_prepared=1, num_preparing=7)
            measures = meter.measures()
            assert measures.device == {"decode": 2.0 * number + 1.0 + index}
            assert measures.queues == Queues(5, 4, preparing=7, ready=3, running=3)
        pipeline.feed = None
    assert meter.measures().device == {"decode": 4.0} and meter.measures().queues == Queues(5, 4)
    assert meter.measures().stages.keys() == {"decode", "draw"} and meter.measures().engines == 1


# --- measures ---
def measured(stages=(), device=None, *, engines=1, **queues):
    return Measures(dict(stages), device, engines=engines, queues=Queues(**queues))


def test_measures_of_engines_side_by_side():
    a = measured({"draw": 1.0}, {"decode": 2.0}, ready=3, slots=4)
    b = measured({"draw": 0.5, "write": 1.0}, {"decode": 1.0, "encode": 1.0}, ready=1, slots=4)
    both = pickle.loads(pickle.dumps(a + b))
    assert both == measured({"draw": 1.5, "write": 1.0}, {"decode": 3.0, "encode": 1.0}, engines=2, ready=4, slots=8)
    assert both.device_share(4.0) == 0.5 and both.device_share(0.0) is None
    assert a + Measures() == a, "a job's own measures change nothing of its reader's"


def test_what_one_part_does_not_know_nobody_knows():
    unknown = Measures(device=None, engines=2, queues=None) + Measures({"write": 1.0}, retries=3)
    assert (unknown.device, unknown.queues, unknown.device_share(1.0)) == (None, None, None)
    assert (unknown.stages, unknown.retries, unknown.engines) == ({"write": 1.0}, 3, 2)
    assert unknown.since(Measures()).device is None


def test_intervals_add_costs_and_take_the_mean_of_queues():
    short = Interval(2.0, 1.0, pages=4, tokens=40, measures=measured({"draw": 1.0}, {"decode": 0.5}, ready=8))
    long = Interval(5.0, 3.0, pages=2, tokens=20, measures=measured({"draw": 2.0}, {"decode": 1.5}, ready=0))
    joined = short + long
    assert (joined.until, joined.seconds, joined.pages, joined.tokens) == (5.0, 4.0, 6, 60)
    assert joined.measures == measured({"draw": 3.0}, {"decode": 2.0}, ready=2)


def series_of(seconds: int, most: int = 8) -> TimeSeries:
    """Of a job that reads two pages a second, its device at work half of the time."""
    series = TimeSeries(most)
    for second in range(1, seconds + 1):
        assert series.is_due(second) and not series.is_due(second - 0.5)
        series.sample(second, 2 * second, 10 * second, measured({}, {"decode": second / 2}, ready=second))
    return series


@pytest.mark.parametrize("seconds", [1, 8, 9, 40, 1000])
def test_a_series_stays_short_and_loses_nothing(seconds):
    series = series_of(seconds)
    assert len(series.intervals) <= 8
    whole = series.whole()
    assert (whole.until, whole.seconds, whole.pages, whole.tokens) == (seconds, seconds, 2 * seconds, 10 * seconds)
    assert whole.measures.device is not None and whole.measures.queues is not None
    assert whole.measures.device["decode"] == pytest.approx(seconds / 2)
    assert whole.measures.queues.ready == pytest.approx((seconds + 1) / 2)
    assert [each.until for each in series.intervals] == sorted({each.until for each in series.intervals})
    lengths = [each.seconds for each in series.intervals[:-1]]
    assert not lengths or max(lengths) == min(lengths)
    recent = series.recent()
    assert (
        recent.measures.queues is not None
        and recent.seconds == min(seconds, 10)
        and recent.measures.queues.ready > seconds - 10
    )


def test_the_rest_of_a_job_is_no_interval_of_its_own():
    """A burst of pages in its last moment would be the highest rate of all."""
    series = series_of(3)
    series.sample(3.01, 26, 30, measured({}, {}))
    assert [(each.until, each.pages) for each in series.intervals] == [(1, 2), (2, 2), (3.01, 22)]


def test_a_series_without_samples():
    series = TimeSeries()
    assert series.whole().seconds == series.recent().seconds == 0.0 and bottleneck(series.whole()) is None
    series.sample(0.0, 0, 0, Measures())
    assert series.whole().seconds == 0.0 and series.intervals == []


# --- what binds ---
WORKERS = {"workers": 16, "slots": 64}
COSTS = {"open": 0.1, "draw": 5.0, "process": 4.0, "decode": 1.0, "post-process": 3.0, "write": 0.5}


def binding(seconds=10.0, stages=COSTS, busy=0.0, engines=1, pages=1, **queues):
    device = {"encode": busy * seconds * engines / 4, "decode": busy * seconds * engines * 3 / 4}
    measures = measured(stages, device, engines=engines, **queues)
    return bottleneck(Interval(seconds, seconds, pages=pages, measures=measures))


def reason(**span):
    found = binding(**span)
    assert found is not None
    return (found.stage, found.reason)


def test_a_busy_device_binds():
    stage, words = reason(busy=0.92, running=64, ready=60, preparing=4, **WORKERS)
    assert (stage, words) == ("engine", "device 92% busy, 60 pages wait for the engine")


def test_workers_bind_where_the_engine_starves():
    stage, words = reason(busy=0.2, running=9, ready=0, preparing=110, **WORKERS)
    assert (stage, words) == (
        "draw",
        "drawing binds: 16 of 16 workers busy, 0 pages wait for the engine, device 20% busy",
    )
    stage, words = reason(stages=COSTS | {"process": 6.0}, running=9, ready=0.4, preparing=14, **WORKERS)
    assert stage == "process" and words.startswith("the image processor binds: 14 of 16 workers busy, 0 pages wait")


def test_a_device_that_decodes_a_few_pages_all_the_time_is_not_what_binds():
    """A step costs it as much for 3 pages as for 64."""
    assert reason(busy=0.97, running=3, ready=0, preparing=120, **WORKERS)[0] == "draw"
    assert reason(busy=0.97, running=3, ready=0, preparing=0, **WORKERS)[0] == "engine", "the last pages of a job"
    assert reason(busy=0.97, running=63, ready=0, preparing=65, **WORKERS)[0] == "engine", "its slots are taken"


def test_the_thread_that_handles_pages_binds_where_they_wait_and_the_device_idles():
    stage, words = reason(busy=0.4, running=60, ready=1.2, preparing=3, **WORKERS)
    assert stage == "post-process" and words == "post-processing binds: device 40% busy, 1 page waits for the engine"
    assert reason(stages={}, busy=0.4, running=60, ready=9, preparing=3, **WORKERS)[0] == "decode"


def test_several_devices_and_none_that_is_known():
    _, words = reason(busy=0.9, engines=2, running=128, ready=64, preparing=3, workers=16, slots=128)
    assert words == "devices 90% busy, 64 pages wait for the engine"
    _, words = reason(stages={}, busy=0.1, running=0, ready=0, preparing=2, workers=0, slots=4)
    assert words == "drawing binds: 0 pages wait for the engine, device 10% busy"
    assert bottleneck(Interval(1.0, 1.0, measures=Measures(device=None, engines=2, queues=None))) is None


def test_where_no_page_is_due_nothing_binds():
    idle = measured({"open": 0.1}, {"decode": 0.0}, **WORKERS)
    assert bottleneck(Interval(1.0, 1.0, measures=idle)) is None
    assert bottleneck(Interval(1.0, 1.0, pages=1, measures=idle)) is not None
    assert reason(preparing=0.5, **WORKERS)[0] == "post-process"


def test_before_the_first_page_what_takes_long_of_one_is_not_known():
    """Only what has an end has cost anything until then."""
    early = {"stages": {"open": 0.1, "write": 0.02}, "pages": 0, **WORKERS}
    words = "preparing inputs binds: 3 of 16 workers busy, 0 pages wait for the engine, device 0% busy"
    assert reason(preparing=3, **early) == ("prepare", words)
    assert binding(preparing=0.5, **early) is None and binding(running=1, **early) is None
    assert reason(running=1, busy=0.9, **early)[0] == "engine"


def test_the_live_line_and_the_totals_say_what_binds():
    summary = Summary(total=3, documents=1, pages=20, tokens=200, seconds=10.0)
    assert "binds" not in live(summary, 3) and not any("bounds" in line for line in totals(summary))
    queues = {"running": 9, "ready": 0, "preparing": 110, **WORKERS}
    summary.series.sample(10.0, 20, 200, measured(COSTS, {"decode": 2.0}, **queues))
    assert live(summary, 3).endswith("tokens/s, drawing binds: 16 of 16 workers busy, 0 pages wait for the engine,"
                                     " device 20% busy")  # fmt: skip
    assert any(line.startswith("what bounds it: drawing binds") for line in totals(summary))
