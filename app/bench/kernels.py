"""What a decode step and a first token consist of: the kernels that the device runs, and how long each of them
takes."""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Recording:
    """Holds what the device ran in a call."""

    counts: Counter[str] = field(default_factory=Counter)  # of each kernel, or copy
    times: Mapping[str, float] = field(default_factory=dict)  # microseconds of all its runs
    busy: float = 0.0  # microseconds in which any of them ran


def kernels_of(first: Callable[[], Any], whole: Callable[[], Any], steps: int, device: torch.device) -> Results:
    """Returns the `kernels` of a decode step, which are what `whole` runs beyond `first`, shared among `steps`, and
    the `first_token_kernels`: how many, their microseconds, those in which any of them runs, and those that take
    longest by name."""
    every, before = _recorded(whole, device), _recorded(first, device)
    return {"kernels": _difference(before, every, steps), "first_token_kernels": _difference(Recording(), before, 1)}


def _difference(before: Recording, every: Recording, steps: int) -> Results:
    """Returns what was run beyond another recording, shared among so many steps."""
    by_name = [
        {
            "name": name[:NAME],
            "count": (count - before.counts[name]) / steps,
            "microseconds": (every.times[name] - before.times.get(name, 0.0)) / steps,
        }
        for name, count in every.counts.items()
        if count > before.counts[name]  # the others are those of prefills
    ]
    by_name.sort(key=operator.itemgetter("microseconds"), reverse=True)
    sums = {each: sum(kernel[each] for kernel in by_name) for each in ("count", "microseconds")}
    return sums | {"busy_microseconds": (every.busy - before.busy) / steps, "longest": by_name[:LONGEST]}


def _recorded(call: Callable[[], Any], device: torch.device) -> Recording:
    """Returns how often the device ran each kernel (or copy) in a call, and for how long."""
    from torch.profiler import ProfilerActivity, profile

    counts, times = Counter[str](), defaultdict[str, float](float)
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        call()
        synchronize(device)
    events = [event for event in profiler.events() or () if event.device_type.name == "CUDA"]
    for event in events:
        counts[event.name] += 1
        times[event.name] += event.device_time_total
    return Recording(counts, times, _union_length((event.time_range.start, event.time_range.end) for event in events))


def _union_length(spans: Iterable[tuple[float, float]]) -> float:
    """Returns how much (start, end) cover together: a kernel may begin while the one before it ends."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
