"""What the requests of a run say together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vlm_app.bench.serving.load import Run
from vlm_app.bench.serving.outcome import LATENCIES, Outcome

PERCENTILES = (50, 95, 99)
LATE_MS, LATE_SHARE = 10.0, 0.1  # the client was the bottleneck if 1% went later, and by so much of a median TTFT
BUSY = 0.8  # or if it took so much of a core, of which it has one


def summary(run: Run, service_levels: Mapping[str, float]) -> dict[str, Any]:
    """Returns the figures of a run; latencies are of completed requests alone."""
    completed = [outcome for outcome in run.outcomes if outcome.failure is None]
    output_tokens = [outcome.tokens for outcome in completed]
    latencies = {
        f"{name}_ms": spread([s for o in completed for s in seconds(o)]) for name, seconds in LATENCIES.items()
    }
    return {
        "completed": len(completed),
        "failed": len(run.outcomes) - len(completed),
        "failures": failures(run.outcomes),
        "seconds": run.seconds,
        "requests_per_s": len(completed) / run.seconds,
        "output_tokens_per_s": sum(output_tokens) / run.seconds,
        "input_tokens": _range([o.prompt_tokens for o in completed if o.prompt_tokens is not None]),
        "output_tokens": _range(output_tokens),
        "tokens_counted_by": "chunks" if any(o.completion_tokens is None for o in completed) else "usage",
        "tokens_per_chunk": sum(output_tokens) / (sum(len(o.chunks) for o in completed) or 1),
        **latencies,
        "goodput": _goodput(completed, run, service_levels) if service_levels else None,
        "peak_concurrency": run.peak_concurrency,
        "client": _client(run, latencies["ttft_ms"]),
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Returns mean and percentiles of seconds, in milliseconds; None of nothing."""
    if not values:
        return None
    percentiles = np.percentile(values, PERCENTILES)
    named = {f"p{p}": float(value) * 1e3 for p, value in zip(PERCENTILES, percentiles, strict=True)}
    return {"mean": float(np.mean(values)) * 1e3, **named, "max": max(values) * 1e3}


def failures(outcomes: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Returns how many failed, by the kind of failure, and what the first one of each said."""
    kinds: dict[str, dict[str, Any]] = {}
    for outcome in outcomes:
        if outcome.failure is not None:
            kinds.setdefault(outcome.failure, {"count": 0, "message": outcome.message})["count"] += 1
    return kinds


def is_good(outcome: Outcome, service_levels: Mapping[str, float]) -> bool:
    """Says whether a request that was completed kept every level; one without a latency keeps it."""
    return all(value * 1e3 <= limit for name, limit in service_levels.items() for value in LATENCIES[name](outcome))


def _goodput(completed: Sequence[Outcome], run: Run, service_levels: Mapping[str, float]) -> dict[str, float]:
    good = sum(is_good(outcome, service_levels) for outcome in completed)
    return {"requests_per_s": good / run.seconds, "share": good / len(run.outcomes)}


def _client(run: Run, ttft: Mapping[str, float] | None) -> dict[str, Any]:
    """Returns how the client itself did: above its own limits it has measured itself."""
    lag = spread(run.lags)
    assert lag is not None
    late = lag["p99"] > max(LATE_MS, LATE_SHARE * (ttft["p50"] if ttft else math.inf))
    measures = {"lag_ms": lag, "queued_ms": spread(run.queued), "cpu_share": run.cpu_share}
    return measures | {"bottleneck": late or run.cpu_share > BUSY}


def _range(values: Sequence[int]) -> dict[str, float] | None:
    return {"mean": float(np.mean(values)), "min": min(values), "max": max(values)} if values else None
