"""How long the ranks that split a network take for what they tell each other in a decode step."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from vlm.executor.graph_pool import GraphPool
from vlm.executor.timing import DeviceTimer
from vlm.parallel.recording import Call

REPEATS = 20  # whose median counts


@dataclass(frozen=True)
class CollectiveTime:
    """What one rank tells the others in a decode step."""

    calls: int
    bytes: int  # of its tensors
    seconds: float  # of these calls alone, one after the other


def time_calls(calls: list[Call], device: torch.device) -> CollectiveTime:
    """Makes these calls again and again, which all ranks do at the same time: on CUDA as one graph, as a step does."""

    def run() -> None:
        for call in calls:
            call.repeat()

    if device.type == "cuda":
        graphs, key = GraphPool(device), ("collectives",)
        graphs.capture(key, run)
        seconds = _seconds(lambda: graphs.run(key), device)
    else:
        seconds = _seconds(run, device)
    return CollectiveTime(len(calls), sum(call.x.nbytes for call in calls), seconds)


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Returns the median of the times of several runs."""
    timer, seconds = DeviceTimer(device), []
    for _ in range(REPEATS):
        timer.reset()
        with timer("run"):
            run()
        seconds.append(timer.totals()["run"])
    return statistics.median(seconds)
