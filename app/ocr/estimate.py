"""What a job will take, told from a sample of its pages: each number with an interval of 90%."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vlm_app.ocr.bottleneck import ENGINE, PREPARING, Bottleneck, bottleneck
from vlm_app.ocr.sample_run import Sample
from vlm_app.ocr.sampling import Census

Array = NDArray[np.float64]
DRAWS = 1000  # of the bootstrap
LEVEL = 0.9
FEW = 5  # documents: of fewer, pages are drawn instead


@dataclass(frozen=True)
class Value:
    """A number, and between which it lies 9 times of 10."""

    estimate: float
    low: float
    high: float

    @classmethod
    def from_draws(cls, draws: Array) -> Value:
        """The first is the estimate, the others are what other samples might have told."""
        tail = (1 - LEVEL) / 2
        low, high = np.quantile(draws, (tail, 1 - tail)) if len(draws) > 1 else (draws[0], draws[0])
        return cls(float(draws[0]), float(min(low, draws[0])), float(max(high, draws[0])))


@dataclass(frozen=True)
class Estimate:
    """What a job over all the documents comes to, without the loading of the model."""

    pages: Value
    seconds: Value
    pages_per_second: Value
    tokens: Value
    error_rate: Value  # pages that fail or repeat themselves after all retries
    cost: Value | None
    cost_per_million_pages: Value | None
    binding: Bottleneck | None


def predict(sample: Sample, census: Census, *, engines: int, gpu_price: float | None, seed: int) -> Estimate:
    """Draws documents, and parts of the time in which the engines were full, again and again with replacement.

    A job takes as long as the sample did from its begin to its end beyond what its pages cost when the engines are
    full, and as all of its pages cost then.
    """
    random = np.random.default_rng(seed)
    binding = bottleneck(sample.span)
    first, whole = _costs(sample, binding)
    pages = _num_pages(census, random)
    count, work, tokens, bad = _resampled(_by_cluster(sample.pages, whole), random).T
    rate = _rates(sample, first, random)
    start = np.maximum(0.0, sample.seconds - first.sum() / rate)
    seconds = start + pages * work / count / rate * _cost_beside_sample(sample, census, binding)
    cost = None if gpu_price is None else gpu_price * engines * seconds / 3600
    return Estimate(
        pages=Value.from_draws(pages),
        seconds=Value.from_draws(seconds),
        pages_per_second=Value.from_draws(pages / seconds),
        tokens=Value.from_draws(pages * tokens / count),
        error_rate=_error_rate(bad / count, len(sample.pages)),
        cost=None if cost is None else Value.from_draws(cost),
        cost_per_million_pages=None if cost is None else Value.from_draws(cost / pages * 1e6),
        binding=binding,
    )


def _costs(sample: Sample, binding: Bottleneck | None) -> tuple[Array, Array]:
    """Returns what the first attempt at each page costs, and all attempts: in pages, 1 on average. Where the engine
    bounds the job, a page costs by its tokens what decoding takes of the device's time."""
    first = np.array([page.tokens[0] for page in sample.pages], dtype=np.float64)
    tokens = np.array([sum(page.tokens) for page in sample.pages], dtype=np.float64)
    attempts = np.array([len(page.tokens) for page in sample.pages], dtype=np.float64)
    device = sample.span.measures.device or {}
    by_tokens = binding is not None and binding.stage == ENGINE and first.any()
    share = 1 - device.get("encode", 0.0) / sum(device.values()) if by_tokens else 0.0
    mean = first.mean() or 1.0
    return 1 - share + share * first / mean, (1 - share) * attempts + share * tokens / mean


def _cost_beside_sample(sample: Sample, census: Census, binding: Bottleneck | None) -> float:
    """Returns what a page of the whole job costs where a page of the sample costs 1: the sample opens documents for
    fewer pages of each. That counts where what makes the engine's inputs bounds the job."""
    stages = sample.summary.series.whole().measures.stages
    preparing = sum(stages.get(stage, 0.0) for stage in PREPARING)
    if binding is None or binding.stage not in PREPARING or not preparing:
        return 1.0
    opened = len({page.document for page in sample.pages}) / len(sample.pages)  # documents a page
    share = stages.get("open", 0.0) / preparing
    return 1 - share + share * len(census.pages) / sum(census.counts) / opened


def _num_pages(census: Census, random: np.random.Generator) -> Array:
    """Returns the number of pages of all documents: [1 + DRAWS]."""
    counts = np.array(census.counts, dtype=np.float64)
    if census.is_whole:
        return np.full(1 + DRAWS, counts.sum())
    return _resampled(counts[:, None], random)[:, 0] / len(counts) * census.num_documents


def _by_cluster(pages: Any, costs: Array) -> Array:
    """Returns pages, costs, tokens and bad pages, summed by document, or of each page of few documents: [n, 4]."""
    is_few = len({page.document for page in pages}) < FEW
    sums: dict[tuple[int, int], Array] = {}
    for page, cost in zip(pages, costs, strict=True):
        cluster = (page.document, page.page if is_few else 0)
        row = np.array([1.0, cost, sum(page.tokens), page.is_bad])
        sums[cluster] = sums.get(cluster, np.zeros(4)) + row
    return np.stack(list(sums.values()))


def _rates(sample: Sample, costs: Array, random: np.random.Generator) -> Array:
    """Returns pages a second while the engines are full: [1 + DRAWS]. Its parts are as long as all slots take to
    change."""
    if not sample.is_steady:
        return np.full(1 + DRAWS, costs.sum() / sample.seconds)
    steady, size = sample.steady, sample.slots
    until = [page.until for page in sample.pages]
    ends = range(steady.start + size, steady.stop + 1, size)
    parts = [(costs[end - size : end].sum(), until[end - 1] - until[end - size - 1]) for end in ends]
    work, seconds = _resampled(np.array(parts), random).T
    return work / np.maximum(seconds, 1e-9)


def _resampled(rows: Array, random: np.random.Generator) -> Array:
    """Returns the sums of the rows, then sums of as many that are drawn with replacement: [1 + DRAWS, columns]."""
    drawn = random.integers(len(rows), size=(DRAWS, len(rows)))
    return np.concatenate([rows.sum(0, keepdims=True), rows[drawn].sum(1)])


def _error_rate(rates: Array, pages: int) -> Value:
    """Returns the part of bad pages; where none is seen, as many as one would miss in a sample of this size."""
    if rates[0] > 0:
        return Value.from_draws(rates)
    return Value(0.0, 0.0, 1 - ((1 - LEVEL) / 2) ** (1 / pages))
