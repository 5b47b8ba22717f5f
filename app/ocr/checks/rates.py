"""Pass rates of groups of checks, and the interval in which they lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from vlm_app.ocr.checks.judging import FAILED, NOT_JUDGED, PASSED

RESAMPLES, CONFIDENCE = 10_000, 0.95


@dataclass(frozen=True)
class Rate:
    """How many checks of a group passed; those that are not judged count for nothing."""

    passed: int
    failed: int
    not_judged: int = 0

    @classmethod
    def from_outcomes(cls, outcomes: Iterable[str]) -> Rate:
        counts = Counter(outcomes)
        return cls(counts[PASSED], counts[FAILED], counts[NOT_JUDGED])

    @property
    def judged(self) -> int:
        return self.passed + self.failed

    @property
    def percent(self) -> float:
        """Returns the pass rate, from 0 to 100; 0 where nothing is judged."""
        return 100 * self.passed / self.judged if self.judged else 0.0

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "pass_rate": self.percent, "interval": interval([self])}


def mean_percent(rates: Iterable[Rate]) -> float:
    """Returns the mean of the pass rates of groups, whatever their sizes: olmOCR-bench's score over its files."""
    percents = [rate.percent for rate in rates if rate.judged]
    return sum(percents) / len(percents) if percents else 0.0


def interval(rates: Iterable[Rate], seed: int = 0) -> tuple[float, float]:
    """Returns the bootstrap's interval of `mean_percent`: each group's checks are drawn again, with repetition.

    How many of n such draws have passed is binomial, so they need not be drawn one by one.
    """
    import numpy as np

    groups = [rate for rate in rates if rate.judged]
    if not groups:
        return 0.0, 0.0
    generator = np.random.default_rng(seed)
    draws = [generator.binomial(g.judged, g.passed / g.judged, RESAMPLES) * (100 / g.judged) for g in groups]
    low, high = np.quantile(np.mean(draws, axis=0), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
