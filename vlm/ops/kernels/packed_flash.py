"""Attention of packed sequences, with or without a bias by distance (compute capability 9.0): packed_flash.cu.

In Triton a program has one tile of rows, and reads the keys and values that its neighbours read, too, as often as the
second-level cache lets it. Each score gathers its bias from global memory there, by an index that is clamped anew: no
lookups of one row of scores are known to be those of another, nor can a program lay a vector into shared memory to look
up there.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import gemm, nvrtc
from vlm.ops.kernels.attend import X_TYPES, has_slices
from vlm.ops.kernels.attention_variant import product_scale
from vlm.ops.kernels.device import device_properties
from vlm.ops.tiles import TILE_ROWS

THREADS = 128  # of a tile, as in packed_flash.cu
ALIGNED = 1024  # where stages begin


@dataclass(frozen=True)
class Shape:
    """What a program takes, and how many share a processor (see packed_flash.cu)."""

    groups: int  # tiles of a program
    programs: int  # of a processor
    keys: int = 64  # of a stage
    stages: int = 2
    together: int = 2  # whether weights are multiplied with values together with queries and further keys
    computed: int = 0  # of each 16 weights, by multiply-adds: up to 8

    @property
    def constants(self) -> dict[str, int]:
        return {
            "GROUPS": self.groups, "PROGRAMS": self.programs, "KEYS": self.keys, "STAGES": self.stages,
            "TOGETHER": self.together, "COMPUTED": self.computed,
        }  # fmt: skip


# by the width of a head, and whether there is a bias: those with one are of short sequences, where neighbouring tiles
# are often of two
SHAPES = {
    (64, False): Shape(groups=2, programs=2),
    (64, True): Shape(groups=1, programs=4),
    (128, False): Shape(groups=3, programs=1, together=0),
    (128, True): Shape(groups=1, programs=3, together=0),
}
DIMS = tuple(dict.fromkeys(dim for dim, _ in SHAPES))


def fits(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, variant: AttentionVariant) -> bool:
    """Tells whether `attention` takes these rows: of 16 bits, all keys of a sequence seen, biases few enough for shared
    memory."""
    if q.dtype not in X_TYPES or q.shape[2] not in DIMS or variant != PLAIN or not gemm.is_there(q.device):
        return False
    most = device_properties(q.device.index).shared_memory_per_block_optin
    return all(map(has_slices, (q, k, v))) and shared_memory(q.shape[2], _most(bias)) <= most


def shared_memory(dim: int, most: int | None) -> int:
    """Returns the bytes of shared memory of a program: stages of keys and values, and biases of all distances that are
    looked up, of which `most` and those beyond have the same (None: there are none)."""
    shape = SHAPES[dim, most is not None]
    biases = 0 if most is None else 2 * (most + TILE_ROWS + shape.keys - 2) + 1
    return ALIGNED + shape.stages * 2 * shape.keys * dim * 2 + 4 * biases


def attention(q: Tensor, k: Tensor, v: Tensor, tiles: Tensor, scale: float, bias: Tensor | None) -> Tensor:
    """Does what the operation `packed_attention` says, for what `fits` says yes to."""
    rows, heads, dim = q.shape
    most, shape = _most(bias), SHAPES[dim, bias is not None]
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    _kernel(X_TYPES[q.dtype], dim, shape, bias is not None, shared_memory(dim, most), q.device).launch(
        (-(-len(tiles) // shape.groups), heads, 1), THREADS * shape.groups,
        q, k, v, tiles, bias, out, product_scale(scale, PLAIN), q.stride(0), k.stride(0), v.stride(0),
        heads // k.shape[1], len(tiles), most or 0,
    )  # fmt: skip
    return out


def _most(bias: Tensor | None) -> int | None:
    """Returns the distance from which on biases are one."""
    return None if bias is None else bias.shape[1] // 2


def constants_of(x_type: int, dim: int, shape: Shape, *, biased: bool) -> dict[str, int | str]:
    return {"X_TYPE": x_type, "DIM": dim, "BIAS": int(biased), **shape.constants}


@functools.cache
def _kernel(x_type: int, dim: int, shape: Shape, biased: bool, memory: int, device: torch.device) -> nvrtc.CudaKernel:
    constants = constants_of(x_type, dim, shape, biased=biased)
    return nvrtc.CudaKernel("packed_flash.cu", "packed_flash", constants, memory)
