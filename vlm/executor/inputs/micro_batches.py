"""Passes in parts: while one stage of a pipeline computes a part, the next one computes the part before it."""

from __future__ import annotations

import itertools

from vlm.requests.sequence import PrefillChunk, Sequence

LEAST_ROWS = 256  # of a part: a pass of fewer takes a GPU about as long, which reads all weights for it


def micro_batches(rows: int, num_stages: int) -> list[tuple[int, int]]:
    """Returns the parts of a pass of so many rows, (begin, end) each: as many as stages, or as have enough rows."""
    count = max(1, min(num_stages, rows // LEAST_ROWS))
    bounds = [part * rows // count for part in range(count + 1)]
    return list(itertools.pairwise(bounds))


def split_prefills(
    prefills: list[tuple[Sequence, PrefillChunk]], num_stages: int
) -> list[list[tuple[Sequence, PrefillChunk]]]:
    """Returns the parts of a pass over prompts. A chunk may lie in several, of which the later ones see the earlier."""
    rows = sum(chunk.end - chunk.start for _, chunk in prefills)
    return [_within(prefills, begin, end) for begin, end in micro_batches(rows, num_stages)]


def _within(prefills: list[tuple[Sequence, PrefillChunk]], begin: int, end: int) -> list[tuple[Sequence, PrefillChunk]]:
    """Returns the chunks of the rows from `begin` to `end` of a pass."""
    found, first = [], 0
    for sequence, chunk in prefills:
        at = chunk.start - first  # from a row of the pass to a position of the prompt
        start, stop = max(chunk.start, begin + at), min(chunk.end, end + at)
        if start < stop:
            found.append((sequence, PrefillChunk(chunk.beam, start, stop)))
        first += chunk.end - chunk.start
    return found
