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
from vlm_app.bench.timing.clock import synchronize

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
    busy: Mapping[str, float] = field(default_factory=dict)  # those after all that began before had ended


def kernels_of(first: Callable[[], Any], whole: Callable[[], Any], steps: int, device: torch.device) -> Results:
    """Returns the `kernels` of a decode step, which are what `whole` runs beyond `first`, shared among `steps`, and
    the `first_token_kernels`: how many, their microseconds, those in which any of them runs, and those that take
    longest by name. A kernel may begin while the one before it ends, and wait: busy it is from that one's end on."""
    every, before = _recorded(whole, device), _recorded(first, device)
    return {"kernels": _difference(before, every, steps), "first_token_kernels": _difference(Recording(), before, 1)}


def _difference(before: Recording, every: Recording, steps: int) -> Results:
    """Returns what was run beyond another recording, shared among so many steps."""
    by_name = [
        {
            "name": name[:NAME],
            "count": (count - before.counts[name]) / steps,
            "microseconds": (every.times[name] - before.times.get(name, 0.0)) / steps,
            "busy_microseconds": (every.busy[name] - before.busy.get(name, 0.0)) / steps,
        }
        for name, count in every.counts.items()
        if count > before.counts[name]  # the others are those of prefills
    ]
    by_name.sort(key=operator.itemgetter("busy_microseconds"), reverse=True)
    sums = {each: sum(kernel[each] for kernel in by_name) for each in ("count", "microseconds")}
    busy = sum(every.busy.values()) - sum(before.busy.values())
    return sums | {"busy_microseconds": busy / steps, "longest": by_name[:LONGEST]}


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
    return Recording(counts, times, _busy((e.time_range.start, e.time_range.end, e.name) for e in events))


def _busy(spans: Iterable[tuple[float, float, str]]) -> dict[str, float]:
    """Returns how much (start, end, name) cover by name, beyond what those cover that begin before."""
    covered, reached = defaultdict[str, float](float), float("-inf")
    for start, end, name in sorted(spans):
        covered[name] += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
