"""What Triton's statistics extension tells of a model: how many requests, and how long each part of them took.

https://github.com/triton-inference-server/server: docs/protocol/extension_statistics.md
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from vlm.requests.token_update import Completion

PARTS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")


@dataclass
class Durations:
    """How often something took place, and how long it took in all."""

    count: int = 0
    ns: int = 0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.ns += max(0, round(seconds * 1e9))

    def as_json(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class RequestTimes:
    """The parts of one request, whose rows go side by side: each part is as long as its longest row's. Seconds."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.input = self.queue = 0.0
        self.compute_end = 0.0  # time.perf_counter() when the engine was done with it

    def prepared(self) -> float:
        """Notes that a row has been read and its images decoded. Returns when that was."""
        now = time.perf_counter()
        self.input = max(self.input, now - self.began)
        return now

    def ended(self, start: float, completion: Completion, time: float) -> None:
        """Notes that a row has been generated, as the host read at this time.perf_counter()."""
        self.queue = max(self.queue, completion.first_scheduled_time - start)
        self.compute_end = max(self.compute_end, time)


class Statistics:
    """Counts one model's work since it was loaded: requests in the event loop, steps in the engine's thread."""

    def __init__(self) -> None:
        self._parts = {name: Durations() for name in PARTS}
        self._steps: dict[int, Durations] = {}  # by the sequences that were decoded at once
        self._lock, self._inferences, self._last = Lock(), 0, 0

    @contextmanager
    def request(self, rows: int) -> Iterator[RequestTimes]:
        """Counts a request of so many inputs: failed where it raises or is left."""
        times, self._last = RequestTimes(), time.time_ns() // 10**6
        try:
            yield times
        except BaseException:
            self._parts["fail"].add(time.perf_counter() - times.began)
            raise
        self._inferences += rows
        self._succeeded(times)

    def step(self, batch: int, seconds: float) -> None:
        """Counts a burst of the engine that decoded so many sequences at once; 0: it worked on prompts alone."""
        if not batch:
            return
        with self._lock:
            self._steps.setdefault(batch, Durations()).add(seconds)

    def as_json(self, name: str, version: str) -> dict[str, Any]:
        """Returns the extension's $model_stat."""
        with self._lock:
            steps = {batch: durations.as_json() for batch, durations in sorted(self._steps.items())}
        nothing = Durations().as_json()
        return {
            "name": name,
            "version": version,
            "last_inference": self._last,
            "inference_count": self._inferences,
            "execution_count": sum(durations["count"] for durations in steps.values()),
            "inference_stats": {part: durations.as_json() for part, durations in self._parts.items()},
            "batch_stats": [
                {"batch_size": batch, "compute_input": nothing, "compute_infer": infer, "compute_output": nothing}
                for batch, infer in steps.items()
            ],
        }

    def _succeeded(self, times: RequestTimes) -> None:
        now = time.perf_counter()
        compute_end = times.compute_end or now
        self._parts["success"].add(now - times.began)
        self._parts["compute_input"].add(times.input)
        self._parts["queue"].add(times.queue)
        self._parts["compute_infer"].add(compute_end - times.began - times.input - times.queue)
        self._parts["compute_output"].add(now - compute_end)


def merged_statistics(servers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns what several servers of the same models tell of them as if one had done the work of all."""
    models: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in (row for server in servers for row in server["model_stats"]):
        models.setdefault((row["name"], row["version"]), []).append(row)
    return {"model_stats": [_merged_model(rows) for rows in models.values()]}


def _merged_model(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    sizes: dict[int, list[dict[str, Any]]] = {}
    for batch in (batch for row in rows for batch in row["batch_stats"]):
        sizes.setdefault(batch["batch_size"], []).append(batch)
    counted = ("inference_count", "execution_count", "inference_stats")
    return {
        **rows[0],
        "last_inference": max(row["last_inference"] for row in rows),
        **{name: _sum([row[name] for row in rows]) for name in counted},
        "batch_stats": [_sum(batches) | {"batch_size": size} for size, batches in sorted(sizes.items())],
    }


def _sum(values: Sequence[Any]) -> Any:
    """Returns the sum of numbers, or of dicts of the same keys a dict of their sums."""
    if isinstance(values[0], dict):
        return {key: _sum([value[key] for value in values]) for key in values[0]}
    return sum(values)
