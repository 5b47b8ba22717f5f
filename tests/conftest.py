from __future__ import annotations

import gc
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from vlm.backends.threads import usable_cpus
from vlm_app.core.processes import garbage

GPU = Path(__file__).parent / "gpu"

# what tests run is small: several threads take longer than one, and beside other work much longer
os.environ.setdefault("OMP_NUM_THREADS", "1")
MOST_PROCESSES = 4  # each holds the models that its tests load


def pytest_configure(config: pytest.Config) -> None:
    """Lets SIGINT end the processes that tests start: where a run is in the background of a shell it is ignored, by
    them, too, and who waits for their end would wait for ever."""
    if config.option.markexpr == "gpu" and (worker := os.environ.get("PYTEST_XDIST_WORKER")):
        _take_gpu(int(worker.removeprefix("gw")))
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _take_gpu(worker: int) -> None:
    """Gives each of several processes one of the GPUs; what needs two is run by one process."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = named.split(",") if named else [*map(str, range(torch.cuda.device_count()))]
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[worker % len(gpus)]


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Shares the default run out to the cores, a file each; tests named on the command line run in this process."""
    if hasattr(config, "workerinput") or "PYTEST_XDIST_WORKER" in os.environ:  # one of those processes
        return
    default = config.args_source is pytest.Config.ArgsSource.TESTPATHS and "not gpu" in config.option.markexpr
    if default and getattr(config.option, "numprocesses", 0) is None and not config.option.usepdb:
        config.option.numprocesses = min(usable_cpus(), MOST_PROCESSES)
        config.option.dist = "loadfile"
        config.option.loadscopereorder = False  # files of few tests, long ones among them, would all be last


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m gpu` looks into tests/gpu alone: a machine with a GPU need not have what the other tests import."""
    other = collection_path.suffix == ".py" and GPU not in collection_path.parents
    return True if config.getoption("markexpr") == "gpu" and other else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips what would begin after the time that a run has, and says so: CI's is limited, and machines differ."""
    if time.time() > float(os.environ.get("VLM_TESTS_END", "inf")):
        pytest.skip("the run's time is over (VLM_TESTS_END)")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Imports all modules of tests, of which nothing is garbage, without going through them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def frozen_imports() -> Iterator[None]:
    """Takes what is imported by now out of the garbage collector's sight, and nothing later: it would go through all of
    torch and transformers, up to a second each time that an engine is closed or a benchmark frees memory."""
    gc.collect()
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(garbage, "exempt", lambda: None)
        patch.setattr(garbage, "collect", gc.collect)
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Lists the files that took most, where `--durations` asks for tests: of a thousand short ones none stands out."""
    if (most := config.option.durations) is None:
        return
    seconds = Counter[str]()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section(f"slowest {most} files" if most else "slowest files")
    for file, took in seconds.most_common(most or None):
        terminalreporter.write_line(f"{took:7.2f}s {file}")


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what is left at the end counts as leaked


@pytest.fixture(scope="module")
def cache_of_module(tmp_path_factory):
    """Gives the tests of a module a cache that no other module sees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
