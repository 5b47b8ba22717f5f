"""Worker processes: what a call costs that hangs, dies, eats memory or is not wanted any more."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

import numpy as np
import pytest

from tests.kits.media_kit import children
from tests.kits.servers.server_kit import until
from tests.kits.worker_calls import (
    ENDLESS,
    arrays,
    die,
    double,
    eat,
    fail_oddly,
    hang,
    hang_once,
    page_faults,
    pid,
    prepare,
    preparers,
    refuse,
)
from vlm.errors import ImageError
from vlm.processing.media.pool import MediaConfig, MediaPool
from vlm.processing.workers import process
from vlm.processing.workers.call import Call
from vlm.processing.workers.call_queue import CallQueue, Lane, lanes_of
from vlm.processing.workers.fork_server import start_fork_server
from vlm.processing.workers.process import STARTS, Budget, WorkerFailure, WorkerProcess
from vlm.processing.workers.result_buffer import SIZE, ResultBuffer

CALLS = "tests.kits.worker_calls"


@pytest.fixture(scope="module")
def pool() -> Iterator[MediaPool]:
    with closing(MediaPool(MediaConfig(1, budget=Budget(2.0, 256), preload=CALLS))) as pool:
        yield pool


def run(pool: MediaPool, function, *arguments):
    return pool.submit(lambda worker: worker.run(function, *arguments)).result()


def failure(pool: MediaPool, function, *arguments) -> str:
    with pytest.raises(WorkerFailure) as raised:
        run(pool, function, *arguments)
    return raised.value.kind


def exists(number: int) -> bool:
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


def test_results_and_errors_cross(pool):
    assert run(pool, double, 21) == 42 and run(pool, pid) == run(pool, pid) != os.getpid()
    with pytest.raises(ImageError, match=r"this is wrong\.") as error:
        run(pool, refuse)
    assert error.value.kind == "too large"
    with pytest.raises(RuntimeError, match="Odd: so it is"):
        run(pool, fail_oddly)


@pytest.mark.parametrize(
    ("kind", "function", "arguments"),
    [
        ("timeout", hang, ()),
        ("memory", eat, (1024,)),
        ("crash", die, (signal.SIGSEGV,)),
        ("crash", die, (signal.SIGTERM,)),
    ],
)
def test_a_failure_costs_its_own_call(pool, kind, function, arguments):
    before = run(pool, pid)
    assert failure(pool, function, *arguments) == kind
    assert run(pool, double, 4) == 8 and run(pool, pid) != before
    assert eat(100) == run(pool, eat, 100)  # within the budget


def test_a_worker_that_died_between_calls_costs_nothing(pool):
    number = run(pool, pid)
    os.kill(number, signal.SIGKILL)
    until(lambda: not exists(number))  # its pipe has an end then
    assert run(pool, double, 1) == 2


def test_a_failure_leaves_the_other_workers_alone():
    with closing(MediaPool(MediaConfig(2, budget=ENDLESS, preload=CALLS))) as pool:
        stuck = pool.submit(lambda worker: worker.run(hang))
        assert [run(pool, double, n) for n in range(5)] == [0, 2, 4, 6, 8]
        until(lambda: pool.state().alive == 2 and pool.state().longest_seconds > 0)
        assert (pool.state().busy, pool.state().restarts) == (1, 0) and not stuck.done()


def test_a_call_that_nobody_wants_is_killed_or_never_begun():
    with closing(MediaPool(MediaConfig(1, budget=ENDLESS, preload=CALLS))) as pool:
        stuck, waiting = (pool.submit(lambda worker: worker.run(hang)) for _ in range(2))
        last = pool.submit(lambda worker: worker.run(double, 3))
        waiting.kill()
        until(lambda: pool.state().busy)
        stuck.kill()
        assert last.result() == 6 and waiting.cancelled()
        with pytest.raises(WorkerFailure, match="stopped"):
            stuck.result()
        assert pool.failures == {"stopped": 1}


def test_a_call_that_was_killed_after_its_end_costs_the_next_nothing(pool):
    for number in range(20):
        call = pool.submit(lambda worker, number=number: worker.run(double, number))
        call.add_done_callback(lambda call: call.kill())
        assert call.result() == 2 * number


def test_closing_waits_for_nothing():
    pool = MediaPool(MediaConfig(2, budget=ENDLESS, preload=CALLS))
    calls = [pool.submit(lambda worker: worker.run(hang)) for _ in range(4)]
    until(lambda: pool.state().busy == 2)
    processes = [worker._process for worker in pool._workers]
    pool.close()
    assert not any(process is not None and process.is_alive() for process in processes)
    for call in [*calls, pool.submit(lambda worker: worker.run(double, 1))]:
        with pytest.raises(WorkerFailure, match="stopped"):
            call.result()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_arrays_cross_by_shared_memory(pool):
    """Those that fit: others, and all where there is no such memory, go through the pipe."""
    fits = SIZE // 8
    for sizes in ((0, 1, 1000), (fits - 16, 1), (fits + 1,), (fits // 2, 3, fits, 5), ()):
        first, second = (run(pool, arrays, *sizes) for _ in range(2))
        for size in sizes:  # of its own: the second call has not written over the first one's
            assert np.array_equal(first[size], arrays(size)[size]) and np.array_equal(first[size], second[size])
            first[size][:] = 0
    none = ResultBuffer(-1, 0)
    assert none.read(none.write(arrays(3)))[3].tolist() == [5, 4, 3]


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="without shared memory arrays are in the message")
def test_shared_memory_goes_with_its_process(pool):
    buffer = ResultBuffer.new()
    content, spans = buffer.write(arrays(1000))
    assert len(content) < 1000 and spans == [(0, 8000)]
    buffer.close()
    run(pool, arrays, 1000)
    gc.collect()  # files of earlier tests
    before = open_files()
    for _ in range(5):
        assert failure(pool, die, signal.SIGKILL) == "crash"
        assert len(run(pool, arrays, 1000)[1000]) == 1000
    assert open_files() == before


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone is told to")
def test_memory_that_a_call_frees_is_there_for_the_next(pool):
    assert run(pool, page_faults, 3) < 3 * 2**23 / 4096 / 2


def test_a_process_that_cannot_start_is_told():
    with closing(MediaPool(MediaConfig(1, budget=ENDLESS, preload="vlm.no_such_module"))) as pool:
        assert failure(pool, double, 1) == "start"
        until(lambda: pool.is_broken)


PARENT = """
import sys, time
from tests.kits.worker_calls import ENDLESS, hang
from vlm.processing.media.pool import MediaConfig, MediaPool
from vlm.processing.workers import process

if __name__ == "__main__":
    pool = MediaPool(MediaConfig(2, budget=ENDLESS, preload="tests.kits.worker_calls"))
    for _ in range(2):
        pool.submit(lambda worker: worker.run(hang))
    while pool.state().busy < 2:
        time.sleep(0.01)
    print("busy", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_workers_die_with_their_parent(number):
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout.readline() == b"busy\n"
    family = children(parent.pid)
    assert len(family) >= 3  # the one they are forked from, and two
    parent.send_signal(number)
    parent.wait()
    until(lambda: not any(process.is_alive() for process in family))


def test_a_pool_that_is_closed_while_it_starts_forks_no_more(monkeypatch):
    """What was waiting to be forked would break the fork server at the end of its process."""
    begun, go_on = list[str](), threading.Event()

    def start(preload, preparations):
        begun.append(preload)
        go_on.wait(60)
        return start_fork_server(preload, preparations)

    monkeypatch.setattr(process, "start_fork_server", start)
    pool = MediaPool(MediaConfig(40, preload=CALLS))
    pool.start()
    until(lambda: len(begun) == STARTS)
    end = threading.Thread(target=pool.close)
    end.start()
    until(lambda: all(worker._has_ended for worker in pool._workers))
    go_on.set()
    end.join(60)
    until(lambda: not any(thread.is_alive() for thread in pool._threads))
    assert len(begun) == STARTS and not any(worker._process for worker in pool._workers)


def test_none_is_started_once_python_ends(monkeypatch):
    """Ctrl-C ends them; who had one at work would start the next, for whose end multiprocessing waits."""
    monkeypatch.setattr("multiprocessing.util._exiting", True)
    worker = WorkerProcess(ENDLESS, "vlm.processing.media.preload")
    with pytest.raises(WorkerFailure) as failure:
        worker.start()
    assert failure.value.kind == "stopped" and not worker.is_ready


INTERRUPTED = """
import os, signal, time
from tests.kits.worker_calls import ENDLESS, complain
from vlm.processing.workers.fork_server import start_fork_server
from vlm.processing.workers.process import WorkerProcess

if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: None)
    start_fork_server("vlm.processing.media.preload", ())
    time.sleep(0.3)
    os.killpg(os.getpgrp(), signal.SIGINT)
    worker = WorkerProcess(ENDLESS, "vlm.processing.media.preload")
    worker.run(complain)
    worker.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no forks")
def test_an_interrupt_while_the_fork_server_imports_is_its_parents():
    """A terminal sends Ctrl-C to the parent's children, too; "heard" is what the worker's call writes."""
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert (done.returncode, done.stderr) == (0, "heard\n")


DAMAGED = """
import io
from PIL import Image
from tests.kits import hostile_kit
from tests.kits.worker_calls import ENDLESS, complain
from vlm.errors import ImageError
from vlm.processing.media.images import load_image
from vlm.processing.workers.process import WorkerProcess

if __name__ == "__main__":
    file = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(file, "TIFF", compression="tiff_lzw")
    tiff = file.getvalue()[:8] + bytes([255]) * 592 + file.getvalue()[600:]
    worker = WorkerProcess(ENDLESS, "vlm.processing.media.preload")
    print(worker.run(load_image, hostile_kit.jpeg([(0xE1, b"Exif\\0\\0II*\\0\\x08\\0\\0\\0\\x05\\0123")])).size)
    try:
        worker.run(load_image, tiff)
    except ImageError as error:
        print("decoder" in str(error))
    worker.run(complain)
    worker.close()
"""


def test_libraries_write_no_lines_of_damaged_files():
    """Pillow would warn of the one, libtiff of the other; what Python says is heard."""
    done = subprocess.run([sys.executable, "-c", DAMAGED], capture_output=True, text=True, check=True)
    assert done.stdout == "(8, 8)\nTrue\n" and done.stderr == "heard\n"


def test_who_waits_for_a_call_is_told_in_a_sentence(pool):
    assert asyncio.run(pool.run("a.png", double, 4)) == 8
    for words, function, arguments in (
        ("reading a.png took longer than 2 s", hang, ()),
        ("reading a.png takes more than 256 MB", eat, (1024,)),
        ("reading a.png broke the process", die, (signal.SIGKILL,)),
        ("this is wrong", refuse, ()),
    ):
        with pytest.raises(ImageError, match=words):
            asyncio.run(pool.run("a.png", function, *arguments))


# --- beside calls that take long ---
async def _until(happens: Callable[[], bool]) -> None:
    while not happens():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("lane", [Lane.DOCUMENTS, Lane.IMAGES])
def test_calls_without_end_do_not_hold_up_others(lane):
    async def others(pool: MediaPool) -> list[int]:
        endless = [asyncio.create_task(pool.run("a.pdf", hang, lane=lane)) for _ in range(5)]
        await _until(lambda: pool.state().busy == 2)
        async with asyncio.timeout(120):  # a pool that has no worker for them fails here
            answers = [await pool.run("a.png", double, number) for number in range(4)]
        assert not any(task.done() for task in endless)
        for task in endless:
            task.cancel()
        return answers

    with closing(MediaPool(MediaConfig(2, budget=ENDLESS, quick_seconds=0.05, preload=CALLS))) as pool:
        assert asyncio.run(others(pool)) == [0, 2, 4, 6]
        assert pool.failures["postponed"] and not pool.failures["timeout"]


def test_a_call_that_gave_way_runs_again(tmp_path):
    begun = tmp_path / "begun"

    async def in_turn(pool: MediaPool) -> list[object]:
        slow = asyncio.create_task(pool.run("a.pdf", hang_once, str(begun), lane=Lane.DOCUMENTS))
        await _until(begun.exists)
        return [await pool.run("a.png", double, 4), await asyncio.wait_for(slow, 120)]

    with closing(MediaPool(MediaConfig(1, budget=ENDLESS, quick_seconds=0.05, preload=CALLS))) as pool:
        assert asyncio.run(in_turn(pool)) == [8, "again"]


def test_a_call_that_nobody_waits_for_takes_its_time_and_its_budget_ends_it():
    with closing(MediaPool(MediaConfig(1, budget=Budget(0.3, 256), quick_seconds=0.05, preload=CALLS))) as pool:
        assert asyncio.run(pool.run("a.pdf", double, 3)) == 6
        with pytest.raises(ImageError, match=r"longer than 0\.3 s"):
            asyncio.run(pool.run("a.pdf", hang))
        assert pool.failures == {"timeout": 1}


def test_half_of_the_workers_prefer_images_and_take_nothing_that_was_postponed():
    assert [Lane.POSTPONED in lanes_of(number, 3) for number in range(3)] == [False, False, True]
    queue, calls = CallQueue(), {lane: Call(lambda worker: None) for lane in Lane}
    for lane in (Lane.POSTPONED, Lane.DOCUMENTS, Lane.IMAGES):
        queue.put(calls[lane], lane)
    assert queue.take(lanes_of(0, 2)) is calls[Lane.IMAGES] and queue.has_any(lanes_of(0, 2))
    assert queue.take(lanes_of(1, 2)) is calls[Lane.DOCUMENTS]
    assert queue.has_any(lanes_of(1, 2)) and not queue.has_any(lanes_of(0, 2))
    calls[Lane.POSTPONED].cancel()
    assert not queue.has_any(lanes_of(1, 2))
    assert queue.close() == [calls[Lane.POSTPONED]] and queue.take(tuple(Lane)) is None


def test_without_processes_calls_run_in_threads():
    with closing(MediaPool(MediaConfig())) as pool:
        assert not pool.has_processes and not pool.is_broken
        assert asyncio.run(pool.run("a.png", pid)) == os.getpid()


# --- before they are ready ---
def test_a_process_that_is_ready_is_replaced_by_one_that_is_prepared():
    with closing(MediaPool(MediaConfig(1, budget=ENDLESS, preload=CALLS))) as pool:
        first = run(pool, pid)
        assert run(pool, preparers) == []
        pool.prepare(prepare)
        prepared = run(pool, pid)
        assert prepared != first and run(pool, preparers) == [prepared]
        pool.prepare(prepare)  # which is no news
        assert run(pool, pid) == prepared and not pool.failures


def test_the_environment_stays_as_it_is(monkeypatch):
    """A process that another thread starts meanwhile would be given what has been freed."""
    changes = []
    monkeypatch.setattr(os, "putenv", lambda *change: changes.append(change))
    monkeypatch.setattr(os, "unsetenv", changes.append)
    with closing(MediaPool(MediaConfig(1, budget=ENDLESS, preload=CALLS))) as pool:
        pool.prepare(prepare)
        assert run(pool, preparers) and not changes
