"""When requests are sent: an open loop, whose arrivals do not wait for answers."""

from __future__ import annotations

import math

import numpy as np


def arrival_times(count: int, rate: float, *, burstiness: float, seed: int) -> list[float]:
    """Returns seconds from the beginning at which requests are due, `count / rate` for the last one.

    The gaps are gamma-distributed with shape `burstiness`: at 1 a Poisson process. They are scaled to that end, so
    that few requests have the mean rate that was asked for, too; one seed gives the same pattern at every rate.
    """
    if math.isinf(rate):
        return [0.0] * count
    ends = np.cumsum(np.random.default_rng(seed).gamma(burstiness, size=count))
    return (ends / ends[-1] * (count / rate)).tolist()
