"""The context of a CUDA device that is made while torch is imported, by a driver that is made up."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

import vlm
from vlm.backends import cuda_context
from vlm.backends.cuda_context import start_context
from vlm_app.core import load_options
from vlm_app.core.load_options import LoadOptions


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    """What the driver is asked, of a machine of two devices."""
    asked: list[tuple] = []

    def device(handle, number):
        asked.append(("device", number))
        handle._obj.value = 40 + number
        return 0 if number < 2 else 101  # CUDA_ERROR_INVALID_DEVICE

    driver = SimpleNamespace(
        cuInit=lambda flags: asked.append(("init", flags)) or 0,
        cuDeviceGet=device,
        cuDevicePrimaryCtxRetain=lambda context, handle: asked.append(("context", handle.value)) or 0,
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver if name == cuda_context.DRIVER else None)
    return asked


@pytest.mark.parametrize(("name", "number"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_a_device_gets_its_context_in_a_thread(calls, name, number):
    start_context(name).join()
    assert calls == [("init", 0), ("device", number), ("context", 40 + number)]


def test_what_is_no_device_gets_none(calls):
    assert start_context("cpu") is None and start_context("cuda:") is None and calls == []
    start_context("cuda:7").join()  # of which torch tells
    assert calls == [("init", 0), ("device", 7)]


def test_without_a_driver_nothing_happens(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    start_context("auto").join()


def test_it_is_started_before_torch_for_what_torch_runs(monkeypatch, tmp_path):
    events = []
    monkeypatch.setattr(load_options, "start_context", events.append)
    monkeypatch.setattr(vlm, "load", lambda model, **options: events.append(model), raising=False)
    for options in (
        LoadOptions(),
        LoadOptions(runtime={"device": "cuda:1"}),
        LoadOptions({"backend": "onnxruntime"}),
    ):
        options.load("a model")
    assert events == ["auto", "a model", "cuda:1", "a model", "a model"]
