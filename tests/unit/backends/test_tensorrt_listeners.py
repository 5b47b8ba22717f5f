from __future__ import annotations

from types import SimpleNamespace

import pytest

from vlm.backends.tensorrt.library import FULL, RTX, Library
from vlm.backends.tensorrt.listeners import Phases, make_logger, make_monitor
from vlm.backends.tensorrt.timing import read_timings, timing_file, write_timings

TRT = SimpleNamespace(
    ILogger=type("ILogger", (), {"INTERNAL_ERROR": 0, "ERROR": 1, "WARNING": 2, "INFO": 3}),
    IProgressMonitor=type("IProgressMonitor", (), {}),
)


def test_nested_phases_add_up():
    phases, seen = Phases(), []
    phases.start("build", 2)
    for _ in range(2):  # a phase comes back under the same name
        phases.start("optimize", 4)
        for step in range(4):
            phases.step("optimize", step)
            seen.append(phases.fraction())
        phases.finish("optimize")
    phases.step("build", 0)
    seen.append(phases.fraction())
    phases.step("build", 1)
    assert seen == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert phases.fraction() == 1.0
    phases.step("unheard of", 3)
    phases.finish("unheard of")


def test_an_interrupt_ends_the_build_and_is_kept():
    interrupt, kept = KeyboardInterrupt(), []

    def progress(*_):
        raise interrupt

    monitor = make_monitor(TRT, "Building", progress, kept)
    monitor.phase_start("build", None, 3)
    assert monitor.step_complete("build", 0) is False
    assert kept == [interrupt]
    assert make_monitor(TRT, "Building", None, []).step_complete("build", 0) is True


def test_errors_are_kept(caplog):
    errors = []
    logger = make_logger(TRT, errors)
    for severity in (0, 1, 2, 3):
        with caplog.at_level("INFO"):
            logger.log(severity, f"message {severity}")
    assert errors == ["message 0", "message 1"]
    assert caplog.messages == ["message 2"]


class FakeConfig:
    """Takes the caches that `fits` says yes to."""

    def __init__(self, fits):
        self.fits, self.cache = fits, None

    def create_timing_cache(self, content: bytes):
        return SimpleNamespace(serialize=lambda: content + b"+", content=content)

    def set_timing_cache(self, cache, ignore_mismatch: bool) -> bool:
        assert ignore_mismatch is False
        if self.fits(cache.content):
            self.cache = cache
        return self.fits(cache.content)

    def get_timing_cache(self):
        return self.cache


def library(name: str) -> Library:
    return Library(name, SimpleNamespace(__version__="11.4"))


def test_timings_are_kept_from_build_to_build(tmp_path):
    file = timing_file(library(FULL), "sm90", tmp_path / "new" / "folder")
    for expected in (b"+", b"++"):
        config = FakeConfig(lambda content: True)
        read_timings(config, file)
        write_timings(config, file)
        assert file.read_bytes() == expected
    assert [path.name for path in file.parent.iterdir()] == ["tensorrt-11.4-sm90.timing"]


def test_timings_of_another_gpu_are_left_out(tmp_path):
    file = tmp_path / "t.timing"
    file.write_bytes(b"other")
    config = FakeConfig(lambda content: content == b"")
    read_timings(config, file)
    assert config.cache.content == b""


@pytest.mark.parametrize("function", [read_timings, write_timings])
def test_rtx_keeps_no_timings(tmp_path, function):
    assert timing_file(library(RTX), "sm89", tmp_path) is None
    function(object(), None)
