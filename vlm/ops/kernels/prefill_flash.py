"""Causal attention of prompts over the paged cache (compute capability 9.0): prefill_flash.cu.

In Triton the warps that multiply also look up blocks and request keys and values, or unpack those of 8 bits, and
products of queries with further keys wait for those of weights with values.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import gemm, nvrtc
from vlm.ops.kernels.attend import KV_TYPES, SLICE, X_TYPES, has_slices
from vlm.ops.kernels.attention_variant import product_scale
from vlm.ops.kernels.device import device_properties, num_processors
from vlm.ops.kernels.paged_kv import scale_stride
from vlm.ops.layouts.paged_kv import MOST, PagedKV

THREADS = 384  # as in prefill_flash.cu: two groups that attend, one that copies
ALIGNED = 1024  # where stages begin
MOST_TILES = 65535  # along the second side of a grid
EACH, WAVES = (4, 2), 3  # heads that a program has one after the other, where processors have so many programs


class Shape(NamedTuple):
    """How a program works: keys of a step, stages of its ring, whether products have 128 columns where there are as
    many, whether its groups request products in turn."""

    keys: int
    stages: int
    wide: bool = True
    turns: bool = False


# by the width of a head, and whether its values have 8 bits: with 128 keys those that copy had no registers for them
SHAPES = {
    (64, False): Shape(128, 6),
    (64, True): Shape(128, 4),
    (128, False): Shape(128, 3),
    (128, True): Shape(64, 4),
}


def fits(q: Tensor, kv: PagedKV, tiles: Tensor, bias: Tensor | None, variant: AttentionVariant) -> bool:
    """Tells whether `attention` takes these rows: of 16 bits, whose keys are those up to their own, without biases."""
    dim, kept = q.shape[2], kv.keys.dtype
    if q.dtype not in X_TYPES or kept not in (q.dtype, *MOST) or (dim, kept in MOST) not in SHAPES:
        return False
    if bias is not None or variant != PLAIN or len(tiles) > MOST_TILES or not gemm.is_there(q.device):
        return False
    if shared_memory(SHAPES[dim, kept in MOST], dim) > device_properties(q.device.index).shared_memory_per_block_optin:
        return False
    return has_slices(q) and q.stride(1) == dim and all(map(_has_slices, (kv.keys, kv.values)))


def _has_slices(kept: Tensor) -> bool:
    """Tells whether keys or values [blocks, H, block_size, D] can be loaded by 16 bytes, tokens behind each other."""
    whole = all(stride * kept.element_size() % SLICE == 0 for stride in kept.stride()[:2])
    return whole and kept.stride()[2:] == (kept.shape[3], 1) and kept.data_ptr() % SLICE == 0


def shared_memory(shape: Shape, dim: int) -> int:
    """Returns the bytes of shared memory of a program: stages of keys and values in 16 bits, of each the highest scales
    and two barriers."""
    return ALIGNED + shape.stages * (2 * shape.keys * dim * 2 + 3 * 8)


def attention(q: Tensor, kv: PagedKV, tables: Tensor, tiles: Tensor, scale: float) -> Tensor:
    """Does what the operation `prefill_attention` says, for what `fits` says yes to."""
    rows, heads, dim = q.shape
    kv_heads, block, kept = kv.keys.shape[1], kv.block_size, kv.keys.dtype
    assert kv.values.stride() == kv.keys.stride() and tables.stride(1) == 1 and tiles.is_contiguous()
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    are_pairs = heads // kv_heads % 2 == 0
    wholes, programs = (heads // 2, len(tiles)) if are_pairs else (heads, -(-len(tiles) // 2))
    each = heads_each(wholes, programs, num_processors(q.device))
    shape = SHAPES[dim, kept in MOST]
    constants = constants_of(X_TYPES[q.dtype], KV_TYPES[kept], dim, block, are_pairs=are_pairs, shape=shape)
    _kernel(tuple(constants.items()), shared_memory(shape, dim), q.device).launch(
        (wholes // each, len(tiles), 1), THREADS,
        q, kv.keys, kv.values, kv.key_scales, kv.value_scales, tables, tiles, out, product_scale(scale, PLAIN),
        q.stride(0), kv.keys.stride(0), kv.keys.stride(1), scale_stride(kv), tables.stride(0), heads // kv_heads,
        each,
    )  # fmt: skip
    return out


def heads_each(heads: int, tiles: int, processors: int) -> int:
    """Returns how many heads, or pairs of them, a program has one after the other: it copies keys of the next one while
    it attends, but fewer programs end less evenly."""
    return next((n for n in EACH if heads % n == 0 and heads // n * tiles >= WAVES * processors), 1)


@functools.cache
def _kernel(constants: tuple[tuple[str, int], ...], memory: int, device: torch.device) -> nvrtc.CudaKernel:
    return nvrtc.CudaKernel("prefill_flash.cu", "prefill_flash", dict(constants), memory)


def constants_of(x_type: int, kv_type: int, dim: int, block: int, *, are_pairs: bool, shape: Shape) -> dict[str, int]:
    """Returns what a kernel is compiled with, by the types' numbers."""
    return {
        "X_TYPE": x_type, "KV_TYPE": kv_type, "DIM": dim, "BLOCK": block, "KEYS": shape.keys, "STAGES": shape.stages,
        "PAIRS": int(are_pairs), "WIDE": int(shape.wide), "TURNS": int(shape.turns),
    }  # fmt: skip
