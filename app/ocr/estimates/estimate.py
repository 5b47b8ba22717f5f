"""What a job will take, told from a sample of its pages: each number with an interval of 90%."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vlm_app.ocr.bottleneck import ENGINE, PREPARING, Bottleneck, bottleneck
from vlm_app.ocr.estimates.bootstrap import DRAWS, Array, Value, resampled, resampled_by_document
from vlm_app.ocr.estimates.sample_run import Sample
from vlm_app.ocr.estimates.sampling import Census

PARTS = 6  # of the time in which the engines are full, or somewhat more


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
    """Draws documents, pages and parts of the time in which the engines were full, again and again with replacement.

    A job takes as long as the sample did from its begin to its end beyond what its pages cost when the engines are
    full, or its first pages did in a cold engine, and as all of its pages cost then.
    """
    random = np.random.default_rng(seed)
    binding = bottleneck(sample.span)
    first, whole = _costs(sample, binding)
    pages = _num_pages(census, random)
    count, work, tokens, bad = _sums(sample, whole, census, random).T
    rate = _rates(sample, first, random)
    start = np.maximum(0.0, sample.seconds - first[sample.timed].sum() / rate)
    start = np.maximum(start, sample.first_seconds - first[: sample.num_untimed].sum() / rate)
    seconds = start + pages * work / count / rate * _cost_beside_sample(sample, census, binding)
    cost = None if gpu_price is None else gpu_price * engines * seconds / 3600
    value = Value.from_draws if len(sample.pages) > 1 or pages[0] == 1 else _without_interval
    return Estimate(
        pages=Value.from_draws(pages),
        seconds=value(seconds),
        pages_per_second=value(pages / seconds),
        tokens=value(pages * tokens / count),
        error_rate=value(bad / count) if bad[0] else Value.of_none_seen(len(sample.pages)),
        cost=None if cost is None else value(cost),
        cost_per_million_pages=None if cost is None else value(cost / pages * 1e6),
        binding=binding,
    )


def _without_interval(draws: Array) -> Value:
    """Returns what one page of several tells: drawn again and again it is the same page, which says nothing of how far
    others lie from it."""
    return Value(float(draws[0]))


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
    """Returns the number of pages of all documents: [1 + DRAWS]. Only documents that were not opened leave it open."""
    counts = np.array(census.counts, dtype=np.float64)
    if census.is_whole:
        return np.full(1 + DRAWS, counts.sum())
    draws = resampled(counts[:, None], random)[:, 0] / len(counts) * census.num_documents
    return draws[0] + np.sqrt(1 - len(counts) / census.num_documents) * (draws - draws[0])


def _sums(sample: Sample, costs: Array, census: Census, random: np.random.Generator) -> Array:
    """Returns the number of pages, what they cost, tokens and bad pages: [1 + DRAWS, 4]."""
    rows = sorted(
        (page.document, page.page, 1.0, cost, sum(page.tokens), page.is_bad)
        for page, cost in zip(sample.pages, costs, strict=True)
    )
    documents = [row[0] for row in rows]
    drawn = set(documents)
    readable = len(census.pages) / len(census.counts) * census.num_documents
    pages = sum(len(census.pages[document]) for document in drawn)
    shares = (len(drawn) / readable, len(rows) / pages)
    return resampled_by_document(np.array([row[2:] for row in rows], dtype=np.float64), documents, shares, random)


def _rates(sample: Sample, costs: Array, random: np.random.Generator) -> Array:
    """Returns pages a second while the engines are full: [1 + DRAWS]. Each of its parts takes all slots to
    change, once or several times: pages are done in bursts."""
    if not sample.is_steady:
        return np.full(1 + DRAWS, costs[sample.timed].sum() / sample.seconds)
    steady = sample.steady
    size = sample.slots * max(1, (steady.stop - steady.start) // (sample.slots * PARTS))
    until = [page.until for page in sample.pages]
    ends = range(steady.start + size, steady.stop + 1, size)
    parts = [(costs[end - size : end].sum(), until[end - 1] - until[end - size - 1]) for end in ends]
    work, seconds = resampled(np.array(parts), random).T
    return work / np.maximum(seconds, 1e-9)
