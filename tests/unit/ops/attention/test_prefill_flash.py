"""Attention of prompts, in CUDA: it compiles without a GPU, what it computes tests/gpu shows."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.kits.kernels import hopper_kit
from vlm.ops.attention.prefill_attention import tiles_of
from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import attend_group, nvrtc, prefill_flash
from vlm.ops.layouts.paged_kv import MOST, KVCache, PagedKV

pytestmark = pytest.mark.slow  # it compiles all variants
CPU = torch.device("cpu")
TILES = torch.tensor(tiles_of([(0, 0, 70)], 64), dtype=torch.int32)
TYPES = [(x, kept) for x in prefill_flash.X_TYPES for kept in (x, *MOST)]


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("are_pairs", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype, kept", TYPES)
def test_it_compiles_for_every_type_and_head(dtype, kept, dim, are_pairs):
    types, shape = (prefill_flash.X_TYPES[dtype], prefill_flash.KV_TYPES[kept]), prefill_flash.SHAPES[dim, kept in MOST]
    constants = prefill_flash.constants_of(*types, dim, 16, are_pairs=are_pairs, shape=shape)
    assert nvrtc.compiled("prefill_flash.cu", tuple(sorted(constants.items())), "sm_90a")[:4] == b"\x7fELF"


def rows(dim: int = 64, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(70, 8, dim, dtype=dtype)[:, :4]


def cache(dim: int = 64, kept: torch.dtype = torch.bfloat16, heads: int = 2) -> PagedKV:
    """Returns blocks as a GPU has them, head after head."""
    zeros = KVCache.zeros(range(1), 5, heads=heads, block_size=16, head_dim=dim, dtype=kept, device=CPU)
    return KVCache(zeros.blocks, heads, 16, dim, kept).layer(0)


def fits(q: torch.Tensor, kv: PagedKV, bias: torch.Tensor | None = None, variant: AttentionVariant = PLAIN) -> bool:
    return prefill_flash.fits(q, kv, TILES, bias, variant)


def test_the_cpu_is_for_others():
    assert not fits(rows(), cache())


@pytest.fixture
def hopper(monkeypatch):
    """A GPU that takes the kernel."""
    hopper_kit.pretend(prefill_flash, monkeypatch)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("dtype, kept", TYPES)
def test_it_takes_rows_of_16_bits_over_caches_of_16_and_8(dtype, kept, dim):
    assert fits(rows(dim, dtype), cache(dim, kept))


@pytest.mark.usefixtures("hopper")
def test_what_changes_scores_is_for_the_kernel_of_triton():
    assert not fits(rows(), cache(), torch.zeros(4, 257))
    for variant in (AttentionVariant(softcap=30.0), AttentionVariant(reach=100)):
        assert not fits(rows(), cache(), None, variant)
    assert not fits(rows(dtype=torch.float32), cache(kept=torch.float32))
    assert not fits(rows(dtype=torch.float16), cache())
    assert not fits(rows(80), cache(80))


@pytest.mark.usefixtures("hopper")
def test_rows_must_be_aligned():
    assert not fits(torch.zeros(70 * 256 + 4, dtype=torch.bfloat16)[4:].view(70, 4, 64), cache())
    assert not fits(torch.zeros(70, 4 * 64 + 4, dtype=torch.bfloat16)[:, :-4].view(70, 4, 64), cache())
    # scales of three tokens behind a block's values
    blocks = torch.zeros(1, 2, 5, 3 * (64 + 4), dtype=torch.int8)
    assert not fits(rows(), KVCache(blocks, 1, 3, 64, torch.int8).layer(0))
    assert not fits(rows(), KVCache.zeros(range(1), 5, heads=2, block_size=16, head_dim=64, dtype=torch.bfloat16,
                                          device=CPU).layer(0))  # fmt: skip


@pytest.mark.parametrize("dim, in_8_bits", prefill_flash.SHAPES)
def test_a_processor_has_memory_for_a_program(dim, in_8_bits):
    memory = prefill_flash.shared_memory(prefill_flash.SHAPES[dim, in_8_bits], dim)
    assert memory + attend_group.RESERVED <= attend_group.MEMORY


def test_programs_have_several_heads_where_processors_have_several_programs():
    each = prefill_flash.heads_each
    assert [each(8, tiles, 132) for tiles in (37, 128, 1024)] == [1, 2, 4]
    assert each(3, 1024, 132) == 1
    assert each(6, 1024, 132) == 2
