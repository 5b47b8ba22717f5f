"""Attention of packed sequences, with and without a bias by distance, on a GPU of compute capability 9.0, against its
reference."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.gpu.kernels.guarded import guarded
from tests.gpu.kernels.test_attend import relative
from tests.gpu.marks import HOPPER
from vlm.ops.attention.packed_attention import packed_attention, reference, tiles_of
from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import packed_flash

pytestmark = HOPPER
Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
TOLERANCES = {torch.float16: 1e-3, torch.bfloat16: 4e-3}
LENGTHS = (1, 63, 700, 64, 65, 300)
HEADS = [(3, 3, 64), (4, 2, 64), (2, 2, 128), (6, 2, 128)]  # of queries, of keys and values, their width


def packed(heads: int, kv_heads: int, dim: int, dtype: torch.dtype, lengths: tuple[int, ...] = LENGTHS) -> Rows:
    """Returns queries, keys and values of sequences, views of the same rows."""
    rows = torch.randn(sum(lengths), heads + 2 * kv_heads, dim, device="cuda", dtype=dtype)
    q, k, v = rows.split((heads, kv_heads, kv_heads), 1)
    return q, k, v


def tiles(rows: int | None, empty: int = 0, lengths: tuple[int, ...] = LENGTHS) -> torch.Tensor:
    return torch.tensor([*tiles_of(lengths, rows), *[(0, 0, 0)] * empty], device="cuda", dtype=torch.int32)


@pytest.mark.parametrize("most", [1, 40, 128, 129, 800])
@pytest.mark.parametrize("heads, kv_heads, dim", HEADS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rows_see_what_the_reference_sees(dtype, heads, kv_heads, dim, most):
    torch.manual_seed(0)
    q, k, v = packed(heads, kv_heads, dim, dtype)
    bias = torch.randn(heads, 2 * most + 1, device="cuda") * 2
    assert packed_flash.fits(q, k, v, bias, PLAIN)
    found = packed_flash.attention(q, k, v, tiles(64, empty=3), dim**-0.5, bias)
    want = reference(q.float(), k.float(), v.float(), tiles(None), dim**-0.5, bias)
    assert relative(found, want) < TOLERANCES[dtype]


# tiles without rows behind them, or none; keys of less than a stage, of one, of several and some more
@pytest.mark.parametrize("empty", [0, 1, 4])
@pytest.mark.parametrize(
    "lengths",
    [LENGTHS, (1, 1, 1), (1,), (63,), (64,), (65,), (127,), (128,), (129, 127), (3000,), (64, 3000, 1, 192, 65)],
)
@pytest.mark.parametrize("heads, kv_heads, dim", HEADS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rows_without_a_bias_see_what_the_reference_sees(dtype, heads, kv_heads, dim, lengths, empty):
    torch.manual_seed(0)
    q, k, v = packed(heads, kv_heads, dim, dtype, lengths)
    assert packed_flash.fits(q, k, v, None, PLAIN)
    found = packed_flash.attention(q, k, v, tiles(64, empty, lengths), dim**-0.5, None)
    want = reference(q.float(), k.float(), v.float(), tiles(None, lengths=lengths), dim**-0.5)
    assert relative(found, want) < TOLERANCES[dtype]


@pytest.mark.parametrize("lengths", [(350, 350), (65,), (64,), (1,), (129, 30)])
@pytest.mark.parametrize("heads, kv_heads, dim", HEADS)
def test_nothing_is_read_behind_the_rows(heads, kv_heads, dim, lengths):
    rows = guarded(torch.randn(sum(lengths), heads + 2 * kv_heads, dim, device="cuda", dtype=torch.bfloat16))
    q, k, v = rows.split((heads, kv_heads, kv_heads), 1)
    found = packed_flash.attention(q, k, v, tiles(64, 1, lengths), dim**-0.5, None)
    want = reference(q.float(), k.float(), v.float(), tiles(None, lengths=lengths), dim**-0.5)
    assert relative(found, want) < TOLERANCES[torch.bfloat16]


@pytest.mark.parametrize("growth", [3.0, 1 / 3])
@pytest.mark.parametrize("dim", packed_flash.PROGRAMS)
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_the_highest_score_changes_from_tile_to_tile(dtype, dim, growth):
    """Scores are without a scale and far apart: those of later keys are larger, or smaller."""
    torch.manual_seed(0)
    q, k, v = packed(2, 2, dim, dtype)
    k *= torch.linspace(1.0, growth, len(k), device="cuda", dtype=dtype)[:, None, None]
    found = packed_flash.attention(q, k, v, tiles(64), 1.0, None)
    want = reference(q.float(), k.float(), v.float(), tiles(None), 1.0)
    assert relative(found, want) < TOLERANCES[dtype]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_the_operation_takes_it_without_a_scale(dtype, biased):
    """As T5's are, whose scores reach far."""
    torch.manual_seed(0)
    q, k, v = packed(4, 4, 64, dtype)
    bias = torch.randn(4, 257, device="cuda") * 8 if biased else None
    found = packed_attention(q, k, v, tiles(64), 1.0, bias)
    assert torch.equal(found, packed_flash.attention(q, k, v, tiles(64), 1.0, bias))
    want = reference(q.float(), k.float(), v.float(), tiles(None), 1.0, bias)
    assert relative(found, want) < TOLERANCES[dtype]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dim", packed_flash.PROGRAMS)
def test_what_lies_behind_a_sequence_is_not_looked_at(dim, biased):
    torch.manual_seed(0)
    q, k, v = packed(2, 2, dim, torch.float16)
    bias = torch.randn(2, 257, device="cuda") if biased else None
    want = packed_flash.attention(q, k, v, tiles(64), 0.125, bias)
    seen, each = sum(LENGTHS[:-1]), tiles(64)
    k[seen:], v[seen:] = float("nan"), float("nan")
    found = packed_flash.attention(q, k, v, each, 0.125, bias)
    assert torch.equal(found[:seen], want[:seen]) and found[seen:].isnan().all()


@pytest.mark.parametrize("biased", [False, True])
def test_other_rows_are_for_the_kernel_of_triton(biased):
    q, k, v = packed(4, 2, 64, torch.float16)
    bias = torch.zeros(4, 257, device="cuda") if biased else None
    assert packed_flash.fits(q, k, v, bias, PLAIN)
    assert not packed_flash.fits(q.float(), k.float(), v.float(), bias, PLAIN)
    assert not packed_flash.fits(q, k, v, bias, AttentionVariant(softcap=30.0))
    assert not packed_flash.fits(q, k, v, bias, AttentionVariant(reach=100))
    assert not packed_flash.fits(q, k, v, torch.zeros(4, 100_001, device="cuda"), PLAIN)  # too many for shared memory
    assert not packed_flash.fits(*packed(4, 2, 80, torch.float16), bias, PLAIN)
    unaligned = torch.zeros(9, 4 * 64 + 4, device="cuda", dtype=torch.float16)[:, 4:].view(9, 4, 64)
    assert not packed_flash.fits(unaligned, k, v, bias, PLAIN)
