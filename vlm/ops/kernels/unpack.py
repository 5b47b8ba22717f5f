"""Weights of 8 and 4 bits unpacked once, for the library's product of many rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.jit import jit
from vlm.ops.layouts.int4_packing import chunk_of

WIDTH = 1024  # bytes of a row that a program reads


@jit
def _unpack8(w_ptr, scale_ptr, y_ptr, K, BK: tl.constexpr):
    row, k = tl.program_id(0).to(tl.int64), tl.program_id(1) * BK + tl.arange(0, BK)
    w = tl.load(w_ptr + row * K + k, mask=k < K, other=0.0).to(tl.float32) * tl.load(scale_ptr + row)
    tl.store(y_ptr + row * K + k, w.to(y_ptr.dtype.element_ty), mask=k < K)


@jit
def _unpack4(
    w_ptr, scale_ptr, zero_ptr, y_ptr, K, GROUP: tl.constexpr, CHUNK: tl.constexpr, BK: tl.constexpr, ZERO: tl.constexpr
):
    L: tl.constexpr = CHUNK // 4
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BK + tl.arange(0, BK)  # int16s
    inside = at < K // 4
    w = tl.load(w_ptr + row * (K // 4) + at, mask=inside, other=0).to(tl.int32)
    for i in tl.static_range(4):  # pyright: ignore[reportGeneralTypeIssues]
        k = at // L * CHUNK + i * L + at % L
        group = row * (K // GROUP) + k // GROUP
        zero = tl.load(zero_ptr + group, mask=inside, other=0).to(tl.int32) if ZERO else 8
        value = (((w >> (4 * i)) & 15) - zero).to(tl.float32) * tl.load(scale_ptr + group, mask=inside, other=0.0)
        tl.store(y_ptr + row * K + k, value.to(y_ptr.dtype.element_ty), mask=inside)


def unpacked8(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns weight · scale [N, K] of weight [N, K] int8 or e4m3 and scale [N, 1] float32."""
    outputs, inputs = weight.shape
    y = torch.empty((outputs, inputs), dtype=dtype, device=weight.device)
    _unpack8[(outputs, triton.cdiv(inputs, WIDTH))](weight, scale, y, inputs, BK=WIDTH, num_warps=2)
    return y


def unpacked4(packed: Tensor, scale: Tensor, zero: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns what vlm.ops.layouts.int4_packing.unpacked4 says in a type."""
    outputs, inputs = len(packed), 2 * packed.shape[1]
    y = torch.empty((outputs, inputs), dtype=dtype, device=packed.device)
    _unpack4[(outputs, triton.cdiv(packed.shape[1], WIDTH))](
        packed.view(torch.int16), scale, scale if zero is None else zero, y, inputs,
        GROUP=inputs // scale.shape[1], CHUNK=chunk_of(inputs), BK=WIDTH // 2, ZERO=zero is not None, num_warps=4,
    )  # fmt: skip
    return y
