"""Intervals for what a sample tells: what other samples might have told, drawn from this one again and again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
DRAWS = 1000
LEVEL = 0.9


@dataclass(frozen=True)
class Value:
    """A number, and between which it lies 9 times of 10; None where a sample does not tell."""

    estimate: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def from_draws(cls, draws: Array) -> Value:
        """Returns the first as the estimate, between what other samples, the others, might have told."""
        tail = (1 - LEVEL) / 2
        low, high = np.quantile(draws, (tail, 1 - tail))
        return cls(float(draws[0]), float(min(low, draws[0])), float(max(high, draws[0])))

    @classmethod
    def of_none_seen(cls, size: int) -> Value:
        """Returns a rate of what a sample of this size does not hold at all."""
        return cls(0.0, 0.0, 1 - ((1 - LEVEL) / 2) ** (1 / size))


def resampled(rows: Array, random: np.random.Generator) -> Array:
    """Returns the sums of the rows, then sums of as many that are drawn with replacement: [1 + DRAWS, columns]."""
    drawn = random.integers(len(rows), size=(DRAWS, len(rows)))
    return np.concatenate([rows.sum(0, keepdims=True), rows[drawn].sum(1)])


def resampled_by_document(
    rows: Array, documents: Sequence[int], shares: tuple[float, float], random: np.random.Generator
) -> Array:
    """Returns sums as `resampled` does, of a sample in two stages: of documents, and of their pages.

    `rows` are the pages', sorted by document. `shares`: which part of all documents the sample has, and which part of
    these documents' pages. What is in it whole leaves nothing open (Rao and Wu, "Resampling inference with complex
    survey data", 1988): draws of documents count by the first, draws of pages within documents by both.
    """
    ends = np.flatnonzero(np.diff(documents)) + 1
    between = resampled(np.stack([part.sum(0) for part in np.split(rows, ends)]), random)
    within = sum(_deviations(part, random) for part in np.split(rows, _ends_of_pairs(ends, len(rows))))
    point, (share, share_of_pages) = between[:1], shares
    return point + np.sqrt(1 - share) * (between - point) + np.sqrt(share * (1 - share_of_pages)) * within


def _deviations(rows: Array, random: np.random.Generator) -> Array:
    """Returns how far sums of drawn rows lie from the sum; draws of `n` rows vary by (n - 1)/n of what others would."""
    sums, n = resampled(rows, random), len(rows)
    return (sums - sums[:1]) * np.sqrt(n / max(1, n - 1))


def _ends_of_pairs(ends: Sequence[int] | NDArray[np.intp], size: int) -> list[int]:
    """Returns where parts end that have two pages or more: documents of one page are joined with the next."""
    kept, begin = list[int](), 0
    for end in ends:
        if end - begin >= 2 and size - end >= 2:
            kept.append(int(end))
            begin = end
    return kept
