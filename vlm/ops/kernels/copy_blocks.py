"""Copies whole blocks of the cache over all layers: a program per (pair, layer and side, piece)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.jit import jit

PIECE = 4096


@jit
def _copy(cache_ptr, sources_ptr, targets_ptr, side_stride, block_stride, SIZE, PIECE: tl.constexpr):
    source, target = tl.load(sources_ptr + tl.program_id(0)), tl.load(targets_ptr + tl.program_id(0))
    if source != target:
        i = tl.program_id(2) * PIECE + tl.arange(0, PIECE)
        side = cache_ptr + tl.program_id(1).to(tl.int64) * side_stride
        x = tl.load(side + source.to(tl.int64) * block_stride + i, mask=i < SIZE)
        tl.store(side + target.to(tl.int64) * block_stride + i, x, mask=i < SIZE)


def copy_blocks(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    assert cache.is_contiguous()
    size = cache[0, 0, 0].numel()
    grid = (len(sources), cache.shape[0] * 2, triton.cdiv(size, PIECE))
    _copy[grid](cache, sources, targets, cache.stride(1), cache.stride(2), size, PIECE=PIECE, num_warps=8)
