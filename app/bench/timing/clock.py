"""Medians of what takes time."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Turns = Generator[None, None, T]  # work in parts, between which others may have theirs


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Returns the wall time of one call, the device's work included."""
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def repeated(call: Callable[[], Any], device: torch.device, repeats: int) -> list[float]:
    return [seconds(call, device) for _ in range(repeats)]


def repeated_with_fresh_inputs(
    draw: Callable[[], T], call: Callable[[T], Any], device: torch.device, repeats: int
) -> list[float]:
    """Times a call as `repeated` does, each time with what is drawn for it, outside of the time."""
    batches = (draw() for _ in range(repeats))
    return [seconds(functools.partial(call, batch), device) for batch in batches]


def turns(calls: list[Callable[[], Any]], device: torch.device, repeats: int) -> Turns[list[list[float]]]:
    """Times every call; a turn is one run of each."""
    timings: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for times, call in zip(timings, calls, strict=True):
            times.append(seconds(call, device))
        yield
    return timings


def in_turns(systems: Mapping[str, Turns[T]]) -> dict[str, T]:
    """Takes a turn of one after the other, until all are done: what else the machine does befalls all alike."""
    results, unfinished = {}, dict(systems)
    while unfinished:
        for name in tuple(unfinished):
            try:
                next(unfinished[name])
            except StopIteration as end:
                results[name] = end.value
                del unfinished[name]
    return results


def milliseconds(values: list[float]) -> float:
    """Returns the median of such times."""
    return statistics.median(values) * 1e3


def per_token(whole: list[float], first: list[float], tokens: int) -> float:
    """Milliseconds a token: (T(n tokens) - T(1 token)) / (n - 1), the same for every system."""
    return (milliseconds(whole) - milliseconds(first)) / (tokens - 1)
