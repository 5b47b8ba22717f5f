"""Attention of many rows, and of heads that share keys, by clusters of programs on a GPU that has them, against its
reference."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.gpu.kernels.test_attend import CACHES, _check_near, batch, cache, relative
from tests.gpu.marks import CLUSTERS
from vlm.ops.attention import kv_write, paged_attention, rotary
from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import attend, attend_group
from vlm.ops.layouts.paged_kv import NewTokens, PagedKV

pytestmark = CLUSTERS
# rows, heads, heads of keys, head size, block size, blocks a table
SHAPES = (
    (1, 16, 8, 128, 16, 40),
    (7, 16, 2, 128, 32, 30),
    (9, 32, 2, 128, 8, 9),
    (3, 12, 4, 64, 64, 8),
    (2, 24, 8, 64, 16, 70),
    (5, 6, 1, 128, 16, 3),
    (6, 5, 5, 128, 16, 40),
    (9, 16, 16, 64, 16, 30),
)
VARIANTS = (PLAIN, AttentionVariant(reach=37), AttentionVariant(softcap=2.0, reach=100))


def tolerance(dtype: torch.dtype, kept: torch.dtype | None) -> float:
    """Weights are rounded as values are: of 8 bits to float16."""
    return 4e-3 if dtype == torch.bfloat16 else 2e-3 if kept else 1e-3


def biases(heads: int, kv_heads: int) -> tuple[torch.Tensor | None, ...]:
    """Returns none, and where no heads share keys such that end before and after a context does."""
    fars = (1, 40, 2000) if heads == kv_heads else ()
    return None, *(3 * torch.randn(heads, 2 * far + 1, device="cuda") for far in fars)


def takes(dim: int, kept: torch.dtype | None) -> bool:
    return kept is None or dim == 128


@pytest.mark.parametrize("kept", CACHES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_see_what_the_reference_sees(shape, dtype, kept):
    torch.manual_seed(0)
    rows, heads, kv_heads, dim, *_ = shape
    kv, (tables, slots, lengths) = cache(shape, dtype, kept), batch(shape)
    q = torch.randn(rows, 3, heads, dim, device="cuda", dtype=dtype)[:, 1]
    assert attend_group.fits(q, kv, None) == takes(dim, kept)
    if not takes(dim, kept):
        return
    for variant, bias in itertools.product(VARIANTS, biases(heads, kv_heads)):
        options = (tables, slots, lengths, dim**-0.5, bias)
        found = attend_group.attention(q, kv, *options, variant, None)
        want = paged_attention.reference(q.float(), kv, *options, variant)
        assert relative(found, want) < tolerance(dtype, kept), variant


@pytest.mark.parametrize("kept", CACHES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_writes_its_tokens_and_sees_them(shape, dtype, kept):
    torch.manual_seed(0)
    rows, heads, kv_heads, dim, *_ = shape
    if not takes(dim, kept):
        return
    for half, bias in itertools.product((0, dim // 2, 16), biases(heads, kv_heads)):
        tables, slots, lengths = batch(shape)
        ours = cache(shape, dtype, kept)
        theirs = PagedKV(ours.keys.clone(), ours.values.clone(), *(x if x is None else x.clone() for x in ours[2:]))
        packed = torch.randn(rows, heads + 2 * kv_heads, dim, device="cuda", dtype=dtype)
        q, k, v = packed.split((heads, kv_heads, kv_heads), 1)
        angle = torch.rand(rows, half, device="cuda") * 6
        angles = torch.stack((angle.cos(), angle.sin()), 1) if half else None
        new, options = NewTokens(k, v, lengths - 1, angles), (tables, slots, lengths, dim**-0.5, bias)
        assert attend_group.fits(q, ours, new)
        found = attend_group.attention(q, ours, *options, PLAIN, new)
        turned = (q, k) if angles is None else (rotary.rotate(q, angles), rotary.rotate(k, angles))
        kv_write.kv_write(turned[1], v, theirs, tables, slots, lengths - 1)
        for one, other in zip(ours[:4], theirs[:4], strict=True):
            if one is not None and other is not None:
                _check_near(one, other)
        want = paged_attention.reference(turned[0].float(), ours, *options)
        assert relative(found, want) < tolerance(dtype, kept), half


@pytest.mark.parametrize("kept", CACHES)
@pytest.mark.parametrize(
    "sharing", [*itertools.product((1, 2, 4), (1, 2, 8), (3,)), *itertools.product((4, 8), (1, 2, 8), (2,))]
)
def test_work_may_be_shared_in_any_way(sharing, kept, monkeypatch):
    monkeypatch.setattr(attend_group, "sharing", lambda *_: sharing)
    for heads, kv_heads in ((16, 2), (5, 5)):
        torch.manual_seed(0)
        shape = (9, heads, kv_heads, 128, 16, 12)
        kv, (tables, slots, lengths) = cache(shape, torch.bfloat16, kept), batch(shape)
        packed = torch.randn(9, heads + 2 * kv_heads, 128, device="cuda", dtype=torch.bfloat16)
        q, k, v = packed.split((heads, kv_heads, kv_heads), 1)
        options = (tables, slots, lengths, 128**-0.5, biases(heads, kv_heads)[-1])
        found = attend_group.attention(q, kv, *options, PLAIN, NewTokens(k, v, lengths - 1, None))
        want = paged_attention.reference(q.float(), kv, *options)
        assert relative(found, want) < tolerance(torch.bfloat16, kept)


def test_scales_may_differ_by_any_factor():
    """Of values in 8 bits: tokens whose scales float16 does not hold side by side."""
    torch.manual_seed(0)
    shape = (4, 16, 2, 128, 16, 20)
    kv, (tables, slots, lengths) = cache(shape, torch.bfloat16, torch.float8_e4m3fn), batch(shape)
    assert kv.value_scales is not None and kv.key_scales is not None
    kv.value_scales.copy_(10.0 ** torch.empty_like(kv.value_scales).uniform_(-12, 8))
    q = torch.randn(4, 16, 128, device="cuda", dtype=torch.bfloat16)
    options = (tables, slots, lengths, 128**-0.5)
    found = attend_group.attention(q * 1e3, kv, *options, None, PLAIN, None)
    want = paged_attention.reference(q.float() * 1e3, kv, *options)
    assert relative(found, want) < 1e-2


@pytest.mark.parametrize("kv_heads", [2, 16])
def test_many_rows_take_it(kv_heads):
    for rows in (32, 64, 200):
        torch.manual_seed(rows)
        shape = (rows, 16, kv_heads, 128, 16, 12)
        kv = cache(shape, torch.bfloat16, None)
        tables, slots, lengths = batch((9, *shape[1:]))
        slots = slots.repeat(rows // 9 + 1)[:rows].contiguous()
        lengths = torch.randint(1, 12 * 16, (rows,), device="cuda", dtype=torch.int32)
        tables[tables == 9 * 12] = 3
        q = torch.randn(rows, 16, 128, device="cuda", dtype=torch.bfloat16)
        assert attend_group.fits(q, kv, None) and not attend.fits(q, kv, None)
        options = (tables, slots, lengths, 128**-0.5)
        found, want = (
            paged_attention.paged_attention(q, kv, *options),
            paged_attention.reference(q.float(), kv, *options),
        )
        assert relative(found, want) < 4e-3


def test_other_heads_are_for_the_kernels_of_triton():
    kv = cache((1, 4, 2, 64, 16, 2), torch.float16, None)
    q = torch.zeros(1, 4, 64, device="cuda", dtype=torch.float16)
    assert attend_group.fits(q, kv, None)
    assert not attend_group.fits(q.float(), kv, None) and not attend_group.fits(q.bfloat16(), kv, None)
    assert attend_group.fits(q[:, :2], kv, None)  # none share keys
    assert not attend_group.fits(q.repeat(1, 10, 1), kv, None)  # too many do
    assert not attend_group.fits(torch.zeros(1, 4, 65, device="cuda", dtype=torch.float16)[..., 1:], kv, None)
    assert not attend_group.fits(torch.zeros(1, 4, 80, device="cuda", dtype=torch.float16),
                                 cache((1, 4, 2, 80, 16, 2), torch.float16, None), None)  # fmt: skip
