"""Attention of packed sequences, with or without a bias by distance (compute capability 9.0): packed_flash.cu.

In Triton products with values and products of further queries and keys, which do not wait for each other, take turns
with exponentials. Each score gathers its bias from global memory there, by an index that is clamped anew: no lookups of
one row of scores are known to be those of another, nor can a program lay a vector into shared memory to look up there.
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
from vlm.ops.layouts.tiles import TILE_ROWS

WARPS, KEYS, STAGES = 4, 64, 2  # as in packed_flash.cu
PROGRAMS = {64: 4, 128: 3}  # of a processor, that registers are shared out among, by the width of a head
ALIGNED = 1024  # where stages begin


def fits(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, variant: AttentionVariant) -> bool:
    """Tells whether `attention` takes these rows: of 16 bits, all keys of a sequence seen, biases few enough for shared
    memory."""
    if q.dtype not in X_TYPES or q.shape[2] not in PROGRAMS or variant != PLAIN or not gemm.is_there(q.device):
        return False
    most = device_properties(q.device.index).shared_memory_per_block_optin
    return all(map(has_slices, (q, k, v))) and shared_memory(q.shape[2], _most(bias)) <= most


def shared_memory(dim: int, most: int | None) -> int:
    """Returns the bytes of shared memory of a program: stages of keys and values, and biases of all distances that are
    looked up, of which `most` and those beyond have the same (None: there are none)."""
    biases = 0 if most is None else 2 * (most + TILE_ROWS + KEYS - 2) + 1
    return ALIGNED + STAGES * 2 * KEYS * dim * 2 + 4 * biases


def attention(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, scale: float, bias: Tensor | None) -> Tensor:
    """Does what the operation `packed_attention` says, for what `fits` says yes to."""
    rows, heads, dim = q.shape
    most = _most(bias)
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    _kernel(X_TYPES[q.dtype], dim, bias is not None, shared_memory(dim, most), q.device).launch(
        (len(tiles), heads, 1), 32 * WARPS,
        q, k, v, tiles, bias, out, product_scale(scale, PLAIN), q.stride(0), k.stride(0), v.stride(0),
        heads // k.shape[1], most or 0,
    )  # fmt: skip
    return out


def _most(bias: Tensor | None) -> int | None:
    """Returns the distance from which on biases are one."""
    return None if bias is None else bias.shape[1] // 2


@functools.cache
def _kernel(x_type: int, dim: int, biased: bool, memory: int, device: torch.device) -> nvrtc.CudaKernel:
    return nvrtc.CudaKernel("packed_flash.cu", "packed_flash", constants_of(x_type, dim, biased=biased), memory)


def constants_of(x_type: int, dim: int, *, biased: bool) -> dict[str, int]:
    return {"X_TYPE": x_type, "DIM": dim, "BIAS": int(biased), "PROGRAMS": PROGRAMS[dim]}
