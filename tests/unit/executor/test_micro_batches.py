"""Passes in parts for the stages of a pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from vlm.executor.inputs.micro_batches import micro_batches, split_prefills
from vlm.requests.sequence import PrefillChunk


def test_parts_have_rows_enough():
    assert micro_batches(4096, 1) == [(0, 4096)]
    assert micro_batches(511, 2) == [(0, 511)], "a GPU would read all weights twice, and be no faster"
    assert micro_batches(515, 2) == [(0, 257), (257, 515)]
    assert micro_batches(600, 4) == [(0, 300), (300, 600)]


@pytest.mark.parametrize("lengths", [(1024,), (100, 300, 600), (700, 1, 1, 322)])
@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_a_chunk_may_lie_in_several_parts(lengths, num_stages):
    names: list[Any] = [f"sequence {i}" for i in range(len(lengths))]
    prefills = [(name, PrefillChunk(1, 7, 7 + n)) for name, n in zip(names, lengths, strict=True)]
    rows = lambda pairs: [(s, c.beam, i) for s, c in pairs for i in range(c.start, c.end)]  # noqa: E731
    parts = split_prefills(prefills, num_stages)
    assert [row for part in parts for row in rows(part)] == rows(prefills)
    sizes = [len(rows(part)) for part in parts]
    assert len(sizes) == num_stages and max(sizes) - min(sizes) <= 1
