"""Attention of prompts over the paged cache on a GPU of compute capability 9.0, against its reference."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.gpu.kernels.test_attend import CACHES, SLOTS, cache, relative
from tests.gpu.marks import HOPPER
from vlm.ops.attention import prefill_attention
from vlm.ops.attention.prefill_attention import reference, tiles_of
from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import prefill_attention as by_triton
from vlm.ops.kernels import prefill_flash
from vlm.ops.layouts.paged_kv import PagedKV

pytestmark = HOPPER
TYPES = [torch.float16, torch.bfloat16]
HEADS = [(3, 3), (4, 2), (6, 2), (16, 2)]  # of queries, of keys and values
Chunk = tuple[int, int, int]  # slot, first position, rows
WHOLE = ((2, 0, 70), (0, 0, 1), (5, 0, 64), (1, 0, 65), (4, 0, 300), (3, 0, 128))
LATER = ((0, 21, 5), (2, 140, 70), (1, 64, 130), (3, 255, 1), (4, 192, 129), (6, 37, 200), (5, 511, 3), (7, 58, 99))
CHUNKS = [WHOLE, LATER, ((0, 0, 1),), ((0, 127, 1),), ((0, 128, 1),), ((3, 0, 600),), ((3, 350, 250), (1, 0, 600))]
SHAPES = [
    prefill_flash.Shape(64, 2, wide=False, turns=False),
    prefill_flash.Shape(64, 3, wide=True, turns=True),
    prefill_flash.Shape(128, 2, wide=False, turns=True),
    prefill_flash.Shape(128, 3, wide=True, turns=False),
]
WIDTH = 600  # tokens that a table has room for, at most


def tolerance(dtype: torch.dtype, kept: torch.dtype | None) -> float:
    """Weights are rounded as values are, values of 8 bits to float16 by their scales."""
    return 4e-3 if dtype == torch.bfloat16 else 2e-3 if kept else 1e-3


def queries(chunks: tuple[Chunk, ...], heads: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    rows = sum(count for *_, count in chunks)
    return torch.randn(rows, heads + 4, dim, device="cuda", dtype=dtype)[:, :heads]


def tiles(chunks: tuple[Chunk, ...], rows: int | None = 64, empty: int = 0) -> torch.Tensor:
    return torch.tensor([*tiles_of(chunks, rows), *[(0, 0, 0, 0)] * empty], device="cuda", dtype=torch.int32)


def contexts(
    chunks: tuple[Chunk, ...], kv_heads: int, dim: int, block: int, dtype: torch.dtype, kept: torch.dtype | None
) -> tuple[PagedKV, torch.Tensor]:
    """Returns what is in the cache, and tables whose blocks lie anywhere: behind a sequence's last token there are no
    numbers."""
    width = -(-WIDTH // block)
    kv = cache((0, 0, kv_heads, dim, block, width), dtype, kept)
    tables = torch.randperm(SLOTS * width, device="cuda", dtype=torch.int32).view(SLOTS, width)
    for slot, position, count in chunks:
        whole, rest = divmod(position + count, block)
        sides = (kv.keys, kv.values) if kept is None else (kv.key_scales, kv.value_scales)
        for side in sides:
            assert side is not None
            if rest:
                side[int(tables[slot, whole]), :, rest:] = float("nan")
        tables[slot, -(-(position + count) // block) :] = SLOTS * width
    return kv, tables


@pytest.mark.parametrize("kept", CACHES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("heads, kv_heads", HEADS)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_rows_see_what_the_reference_sees(chunks, heads, kv_heads, dim, dtype, kept):
    torch.manual_seed(0)
    kv, tables = contexts(chunks, kv_heads, dim, 16, dtype, kept)
    q = queries(chunks, heads, dim, dtype)
    assert prefill_flash.fits(q, kv, tiles(chunks), None, PLAIN)
    want = reference(q.float(), kv, tables, tiles(chunks, None), dim**-0.5)
    for empty in (0, 3):
        found = prefill_flash.attention(q, kv, tables, tiles(chunks, empty=empty), dim**-0.5)
        assert relative(found, want) < tolerance(dtype, kept)


@pytest.mark.parametrize("kept", CACHES)
@pytest.mark.parametrize("block", [8, 24, 32, 64, 256])
@pytest.mark.parametrize("heads, kv_heads", HEADS[:2])
def test_blocks_may_have_any_size(heads, kv_heads, block, kept):
    torch.manual_seed(0)
    kv, tables = contexts(LATER, kv_heads, 128, block, torch.float16, kept)
    q = queries(LATER, heads, 128, torch.float16)
    assert prefill_flash.fits(q, kv, tiles(LATER), None, PLAIN)
    found = prefill_flash.attention(q, kv, tables, tiles(LATER), 128**-0.5)
    want = reference(q.float(), kv, tables, tiles(LATER, None), 128**-0.5)
    assert relative(found, want) < tolerance(torch.float16, kept)


@pytest.mark.parametrize("each", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("kept", CACHES)
def test_work_may_be_shared_in_any_way(kept, dim, shape, each, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(prefill_flash, "heads_each", lambda *_: each)
    monkeypatch.setitem(prefill_flash.SHAPES, (dim, kept is not None), shape)
    for (heads, kv_heads), chunks in itertools.product(((4, 4), (8, 4)), (WHOLE, LATER)):
        kv, tables = contexts(chunks, kv_heads, dim, 16, torch.bfloat16, kept)
        q = queries(chunks, heads, dim, torch.bfloat16)
        found = prefill_flash.attention(q, kv, tables, tiles(chunks), dim**-0.5)
        want = reference(q.float(), kv, tables, tiles(chunks, None), dim**-0.5)
        assert relative(found, want) < tolerance(torch.bfloat16, kept)


@pytest.mark.parametrize("growth", [3.0, 1 / 3])
@pytest.mark.parametrize("kept", CACHES)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_highest_score_changes_from_step_to_step(dtype, kept, growth):
    """Scores are without a scale and far apart: those of later blocks are larger, or smaller."""
    torch.manual_seed(0)
    kv, tables = contexts(CHUNKS[-1], 2, 128, 16, dtype, kept)
    by = torch.linspace(1.0, growth, tables.shape[1], device="cuda")[:, None, None]
    for slot in (1, 3):
        side, by_side = (kv.keys, by[..., None]) if kv.key_scales is None else (kv.key_scales, by)
        blocks = tables[slot].long()
        side[blocks] = (side[blocks].float() * by_side).to(side.dtype)
    q = queries(CHUNKS[-1], 4, 128, dtype)
    found = prefill_flash.attention(q, kv, tables, tiles(CHUNKS[-1]), 0.5)
    want = reference(q.float(), kv, tables, tiles(CHUNKS[-1], None), 0.5)
    assert relative(found, want) < (2 if kept is None else 4) * tolerance(dtype, kept)


def test_scales_may_differ_by_any_factor():
    """Of values in 8 bits: tokens whose scales float16 does not hold side by side."""
    torch.manual_seed(0)
    kv, tables = contexts(WHOLE, 2, 128, 16, torch.bfloat16, torch.float8_e4m3fn)
    assert kv.value_scales is not None
    factors = 10.0 ** torch.empty_like(kv.value_scales).uniform_(-12, 8)
    kv.value_scales.copy_(kv.value_scales * factors)
    q = queries(WHOLE, 16, 128, torch.bfloat16)
    found = prefill_flash.attention(q * 1e3, kv, tables, tiles(WHOLE), 128**-0.5 * 1e-3)
    want = reference(q.float() * 1e3, kv, tables, tiles(WHOLE, None), 128**-0.5 * 1e-3)
    assert relative(found, want) < 1e-2


@pytest.mark.parametrize("kept", CACHES)
@pytest.mark.parametrize("heads, kv_heads", HEADS)
def test_it_agrees_with_the_kernel_of_triton(heads, kv_heads, kept, monkeypatch):
    torch.manual_seed(0)
    kv, tables = contexts(LATER, kv_heads, 128, 16, torch.bfloat16, kept)
    q = queries(LATER, heads, 128, torch.bfloat16)
    arguments = (q, kv, tables, tiles(LATER), 128**-0.5)
    found = prefill_attention.prefill_attention(*arguments)
    assert torch.equal(found, prefill_flash.attention(*arguments))
    monkeypatch.setattr(prefill_flash, "fits", lambda *_: False)
    assert relative(found, by_triton.prefill_attention(*arguments, None)) < 6e-3


def test_results_are_the_same_in_any_batch():
    """A row's steps are those of its tile alone."""
    torch.manual_seed(0)
    kv, tables = contexts(LATER, 2, 128, 16, torch.bfloat16, None)
    for heads in (2, 4):
        q = queries(LATER, heads, 128, torch.bfloat16)
        together = prefill_flash.attention(q, kv, tables, tiles(LATER), 128**-0.5)
        counts = [count for *_, count in LATER]
        for chunk, one, rows in zip(LATER, q.split(counts), together.split(counts), strict=True):
            assert torch.equal(rows, prefill_flash.attention(one, kv, tables, tiles((chunk,)), 128**-0.5))


def test_other_rows_are_for_the_kernel_of_triton():
    kv, _ = contexts(WHOLE, 2, 64, 16, torch.float16, None)
    q, each = queries(WHOLE, 4, 64, torch.float16), tiles(WHOLE)
    assert prefill_flash.fits(q, kv, each, None, PLAIN)
    assert not prefill_flash.fits(q.bfloat16(), kv, each, None, PLAIN)
    assert not prefill_flash.fits(q, kv, each, torch.zeros(4, 257, device="cuda"), PLAIN)
    assert not prefill_flash.fits(q, kv, each, None, AttentionVariant(reach=100))
