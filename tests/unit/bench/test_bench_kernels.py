"""`--profile`: what the kernels of a step are taken from, and how they are told of."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from tests.kits.cli_kit import call
from vlm_app.bench.timing import kernels
from vlm_app.cli.evaluation.bench_output import print_table

CPU = torch.device("cpu")


def record(monkeypatch: pytest.MonkeyPatch, runs: dict[str, list[tuple[str, float]]]) -> None:
    """Lets a device run these kernels, of so many microseconds, in calls that return their names."""

    def recorded(call, device):
        ran = runs[call()]
        times = {name: sum(us for other, us in ran if other == name) for name, _ in ran}
        return kernels.Recording(Counter(name for name, _ in ran), times, {name: us / 2 for name, us in times.items()})

    monkeypatch.setattr(kernels, "_recorded", recorded)


def test_a_step_is_what_more_tokens_run_beyond_the_first(monkeypatch):
    prefill = [("prefill", 90.0), ("gemv", 4.0)]
    steps = [("gemv", 3.0), ("gemv", 5.0), ("attend", 9.0)] * 4
    record(monkeypatch, {"first": prefill, "whole": prefill + steps})
    both = kernels.kernels_of(lambda: "first", lambda: "whole", 4, CPU)
    found, first = both["kernels"], both["first_token_kernels"]
    assert found["count"] == 3 and found["microseconds"] == pytest.approx(17)
    assert found["busy_microseconds"] == pytest.approx(8.5)
    prefilled = {"name": "prefill", "count": 1, "microseconds": 90.0, "busy_microseconds": 45.0}
    assert first["count"] == 2 and first["longest"][0] == prefilled
    assert [(k["name"], k["count"], k["microseconds"], k["busy_microseconds"]) for k in found["longest"]] == [
        ("attend", 1, pytest.approx(9), pytest.approx(4.5)),
        ("gemv", 2, pytest.approx(8), pytest.approx(4)),
    ]


def test_kernels_are_counted_as_the_profiler_names_them(monkeypatch):
    gpu, cpu = SimpleNamespace(name="CUDA"), SimpleNamespace(name="CPU")

    def event(name, start, end, where=gpu):
        span = SimpleNamespace(start=start, end=end)
        return SimpleNamespace(name=name, device_time_total=end - start, time_range=span, device_type=where)

    events = [event("gemv", 7.0, 8.5), event("gemv", 1.0, 3.5), event("attend", 2.5, 5.0), event("launch", 0, 9.0, cpu)]

    class Profile:
        def __init__(self, **_): ...
        def __enter__(self):
            return self

        def __exit__(self, *_): ...
        def events(self):
            return events

    monkeypatch.setattr("torch.profiler.profile", Profile)
    found = kernels._recorded(lambda: None, CPU)
    busy = {"gemv": 4.0, "attend": 1.5}  # attention waits for the first product
    assert found == kernels.Recording(Counter(gemv=2, attend=1), {"gemv": 4.0, "attend": 2.5}, busy)


def test_they_are_printed_below_the_table(capsys):
    step = {
        "count": 3.0,
        "microseconds": 17.0,
        "busy_microseconds": 15.0,
        "longest": [{"name": "attend", "count": 1.0, "microseconds": 9.0, "busy_microseconds": 7.0}],
    }
    times = {"encode_ms": 1.0, "first_token_ms": 2.0, "ms_per_token": 0.5, "batch_size": 1}
    result = {
        "kind": "latency", "subject": "mini-nougat", "hf": None, "vlm": times | {"kernels": step},
        "config": {"dtype": "float32", "batch_size": 1, "new_tokens": 9, "device": "cuda", "hf": False},
        "environment": {"device": "a GPU", "commit": None, "gpu": "a GPU"},
        "floor": {"bandwidth": 1e12, "step_ms": 0.1, "ms_per_token": 0.1, "reached": 0.2},
    }  # fmt: skip
    print_table(result)
    printed = capsys.readouterr().out
    assert "torch, batch 1: a step is 3.00 kernels of 17.0 µs, in 15.0 µs" in printed
    assert "attend" in printed and "9.00" in printed and "7.00" in printed


def test_without_a_gpu_it_is_refused():
    run = call("bench", "latency", "--model", "mini-nougat", "--device", "cpu", "--profile", "--no-hf")
    assert run.exit_code == 2
    assert "--profile lists the kernels of a GPU; on cpu leave it out, or choose one: --device cuda." in run.output
