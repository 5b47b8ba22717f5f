"""What a decode step consists of: the kernels that the device runs in it, and how long each of them takes."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import torch

from vlm.errors import InputError
from vlm_app.bench.clock import synchronize

LONGEST = 12  # kernels that are named
NAME = 80  # letters of a name
Results = dict[str, Any]


def check_profiled(device: torch.device) -> None:
    """Raises InputError for a device whose kernels cannot be listed."""
    if device.type != "cuda":
        raise InputError(
            f"--profile lists the kernels of a GPU; on {device} leave it out, or choose one: --device cuda."
        )


def step_kernels(first: Callable[[], Any], whole: Callable[[], Any], steps: int, device: torch.device) -> Results:
    """Returns the kernels of a decode step, their microseconds, and those that take longest by name: what `whole` runs
    beyond `first`, shared among `steps`."""
    (counts, times), (first_counts, first_times) = _recorded(whole, device), _recorded(first, device)
    by_name = [
        {
            "name": name[:NAME],
            "count": (count - first_counts[name]) / steps,
            "microseconds": (times[name] - first_times.get(name, 0.0)) / steps,
        }
        for name, count in counts.items()
        if count > first_counts[name]  # the others are those of prefills
    ]
    by_name.sort(key=operator.itemgetter("microseconds"), reverse=True)
    sums = {field: sum(kernel[field] for kernel in by_name) for field in ("count", "microseconds")}
    return sums | {"longest": by_name[:LONGEST]}


def _recorded(call: Callable[[], Any], device: torch.device) -> tuple[Counter[str], dict[str, float]]:
    """Returns how often the device ran each kernel (or copy) in a call, and the microseconds of all its runs."""
    from torch.profiler import ProfilerActivity, profile

    counts, times = Counter[str](), defaultdict[str, float](float)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
        synchronize(device)
    for event in profiler.events() or ():
        if event.device_type.name == "CUDA":
            counts[event.name] += 1
            times[event.name] += event.device_time_total
    return counts, times
