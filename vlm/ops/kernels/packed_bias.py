"""Attention of packed sequences with a bias by distance (compute capability 9.0): packed_bias.cu.

In Triton each score gathers its bias from global memory, by an index that is clamped anew: no lookups of one row of
scores are known to be those of another, nor can a program lay a vector into shared memory to look up there.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import gemm, nvrtc
from vlm.ops.kernels.attend import X_TYPES, has_slices
from vlm.ops.kernels.attention_variant import product_scale
from vlm.ops.kernels.device import device_properties
from vlm.ops.tiles import TILE_ROWS

DIMS = (64, 128)
WARPS, STAGES = 4, 2  # as in packed_bias.cu
ALIGNED = 1024  # where stages begin


def fits(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, variant: AttentionVariant) -> bool:
    """Tells whether `attention` takes these rows: of 16 bits, all keys of a sequence seen, biases few enough for shared
    memory."""
    dim = q.shape[2]
    if q.dtype not in X_TYPES or dim not in DIMS or variant != PLAIN or not gemm.is_there(q.device):
        return False
    most = device_properties(q.device.index).shared_memory_per_block_optin
    return all(map(has_slices, (q, k, v))) and shared_memory(dim, bias.shape[1] // 2) <= most


def shared_memory(dim: int, most: int) -> int:
    """Returns the bytes of shared memory of a program: stages of keys and values, and biases of all distances that are
    looked up, of which `most` and those beyond have the same."""
    return ALIGNED + STAGES * 2 * TILE_ROWS * dim * 2 + 4 * (2 * (most + 2 * (TILE_ROWS - 1)) + 1)


def attention(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, scale: float, bias: Tensor) -> Tensor:
    """Does what the operation `packed_attention` says, for what `fits` says yes to."""
    rows, heads, dim = q.shape
    most = bias.shape[1] // 2
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    _kernel(X_TYPES[q.dtype], dim, shared_memory(dim, most), q.device).launch(
        (len(tiles), heads, 1), 32 * WARPS,
        q, k, v, tiles, bias, out, product_scale(scale, PLAIN), q.stride(0), k.stride(0), v.stride(0),
        heads // k.shape[1], most,
    )  # fmt: skip
    return out


@functools.cache
def _kernel(x_type: int, dim: int, memory: int, device: torch.device) -> nvrtc.CudaKernel:
    return nvrtc.CudaKernel("packed_bias.cu", "packed_bias", {"X_TYPE": x_type, "DIM": dim}, memory)
