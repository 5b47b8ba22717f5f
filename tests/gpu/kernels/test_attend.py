"""Attention of few rows by clusters of programs on a GPU that has them, against its reference in float32."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.gpu.marks import CLUSTERS
from vlm.ops.attention import kv_write, paged_attention, rotary
from vlm.ops.attention.step_attention import step_attention
from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import attend
from vlm.ops.layouts.paged_kv import KVCache, NewTokens, PagedKV

pytestmark = CLUSTERS
# rows, heads, heads of keys, head size, block size, blocks a table
SHAPES = (
    (1, 16, 16, 64, 16, 40),
    (1, 32, 8, 128, 32, 70),
    (3, 12, 12, 80, 16, 9),
    (5, 6, 2, 96, 8, 30),
    (2, 8, 1, 256, 64, 8),
    (8, 16, 16, 64, 16, 3),
    (1, 1, 1, 16, 16, 300),
)
CACHES = (None, torch.int8, torch.float8_e4m3fn)
SLOTS = 9


def cache(shape, dtype: torch.dtype, kept: torch.dtype | None) -> PagedKV:
    """Returns blocks of random keys and values, the last of which must not be read."""
    _, _, heads, dim, block, width = shape
    kv = KVCache.zeros(
        range(1), SLOTS * width + 1, heads=heads, block_size=block, head_dim=dim, dtype=kept or dtype,
        device=torch.device("cuda"),
    ).layer(0)  # fmt: skip
    tables = torch.arange(SLOTS * width, device="cuda", dtype=torch.int32).view(SLOTS, width)
    places = torch.arange(width * block, device="cuda", dtype=torch.int32)
    for slot in range(SLOTS):
        k, v = torch.randn(2, len(places), heads, dim, device="cuda", dtype=dtype)
        kv_write.kv_write(k, v, kv, tables, torch.full_like(places, slot), places)
    if kept is None:
        kv.keys[-1], kv.values[-1] = float("nan"), float("nan")
    return kv


def batch(shape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns tables, slots and lengths: one token, all there is room for, and what lies between."""
    rows, *_, block, width = shape
    tables = torch.randperm(SLOTS * width, device="cuda", dtype=torch.int32).view(SLOTS, width)
    slots = torch.randperm(SLOTS, device="cuda", dtype=torch.int32)[:rows]
    lengths = torch.randint(1, width * block + 1, (rows,), device="cuda", dtype=torch.int32)
    lengths[0] = width * block
    if rows > 1:
        lengths[1] = 1
        tables[slots[1], 1:] = SLOTS * width
    return tables, slots, lengths


def relative(found: torch.Tensor, want: torch.Tensor) -> float:
    return float((found.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("kept", CACHES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_see_what_the_reference_sees(shape, dtype, kept):
    torch.manual_seed(0)
    rows, heads, kv_heads, dim, *_ = shape
    kv, (tables, slots, lengths) = cache(shape, dtype, kept), batch(shape)
    q = torch.randn(rows, 3, heads, dim, device="cuda", dtype=dtype)[:, 1]
    for bias in (None, torch.randn(heads, 2 * 7 + 1, device="cuda")) if heads == kv_heads else (None,):
        for variant in (PLAIN, AttentionVariant(reach=37), AttentionVariant(softcap=2.0, reach=100)):
            assert attend.fits(q, kv, None)
            options = (tables, slots, lengths, dim**-0.5, bias, variant)
            found = paged_attention.paged_attention(q, kv, *options)
            want = paged_attention.reference(q.float(), kv, *options)
            assert relative(found, want) < (4e-3 if dtype == torch.bfloat16 else 5e-4), (bias is None, variant)


@pytest.mark.parametrize("kept", CACHES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_writes_its_tokens_and_sees_them(shape, dtype, kept):
    torch.manual_seed(0)
    rows, heads, kv_heads, dim, *_ = shape
    for half, is_biased in itertools.product((0, dim // 2, 16), (False, True)):
        if (is_biased and heads != kv_heads) or half > dim // 2:
            continue
        tables, slots, lengths = batch(shape)
        ours = cache(shape, dtype, kept)
        theirs = PagedKV(ours.keys.clone(), ours.values.clone(), *(x if x is None else x.clone() for x in ours[2:]))
        packed = torch.randn(rows, heads + 2 * kv_heads, dim, device="cuda", dtype=dtype)
        q, k, v = packed.split((heads, kv_heads, kv_heads), 1)
        angle = torch.rand(rows, half, device="cuda") * 6
        angles = torch.stack((angle.cos(), angle.sin()), 1) if half else None
        bias = torch.randn(heads, 2 * 7 + 1, device="cuda") if is_biased else None
        new, options = NewTokens(k, v, lengths - 1, angles), (tables, slots, lengths, dim**-0.5, bias)
        # what is turned must be whole slices
        assert attend.fits(q, ours, new) == (half % (attend.SLICE // ours.keys.element_size()) == 0)
        found = step_attention(q, new, ours, *options)
        turned = (q, k) if angles is None else (rotary.rotate(q, angles), rotary.rotate(k, angles))
        kv_write.kv_write(turned[1], v, theirs, tables, slots, lengths - 1)
        for one, other in zip(ours[:4], theirs[:4], strict=True):
            if one is not None and other is not None:
                _check_near(one, other)
        want = paged_attention.reference(turned[0].float(), ours, *options)
        assert relative(found, want) < (4e-3 if dtype == torch.bfloat16 else 5e-4), (half, is_biased)


def _check_near(one: torch.Tensor, other: torch.Tensor) -> None:
    """Checks that few values are a rounding apart: turned keys are sums of products in another order."""
    one, other = one.float().nan_to_num(), other.float().nan_to_num()
    apart = (one - other).abs() > 1e-5 * one.abs()
    assert float(apart.float().mean()) < 1e-3
    assert float((one - other).abs().max()) <= max(1.0, float(one.abs().max()) / 8)


def test_many_rows_and_odd_heads_are_for_the_kernels_of_splits():
    kv = cache((1, 4, 4, 64, 16, 2), torch.float16, None)
    q = torch.zeros(1, 4, 64, device="cuda", dtype=torch.float16)
    assert attend.fits(q, kv, None)
    assert not attend.fits(q.float(), kv, None)
    assert not attend.fits(q.bfloat16(), kv, None)
    assert not attend.fits(q.expand(200, 4, 64), kv, None)
    assert not attend.fits(torch.zeros(1, 4, 65, device="cuda", dtype=torch.float16)[..., 1:], kv, None)
    odd = cache((1, 4, 4, 12, 16, 2), torch.float16, None)
    assert not attend.fits(q[..., :12], odd, None)


def test_a_graph_repeats_it_on_new_inputs():
    torch.manual_seed(0)
    shape = (1, 16, 16, 64, 16, 40)
    kv, (tables, slots, lengths) = cache(shape, torch.float16, None), batch(shape)
    q = torch.randn(1, 16, 64, device="cuda", dtype=torch.float16)

    def chain() -> torch.Tensor:
        y = q
        for _ in range(6):
            y = paged_attention.paged_attention(y, kv, tables, slots, lengths, 1.0) * 4
        return y

    chain()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = chain()
    for length in (1, 5, 64, 333, 640):
        q.normal_()
        lengths.fill_(length)
        graph.replay()
        assert torch.equal(y, chain())
