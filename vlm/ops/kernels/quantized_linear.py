"""Products of few rows with weights of 8 and 4 bits, which are unpacked in registers.

The weight is the left side of the tensor cores' product and the rows of x are its columns: eight rows cost what one
costs. Where there are fewer, the inputs are cut into slices: row n of the weight becomes rows (n, slice), row m of x
columns (m, slice), and of their products those of equal slices are summed. So a batch of one row, too, has as many
short sums as keep the memory busy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.kernels import gemv
from vlm.ops.kernels.activation import constants, finished, outputs, store
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.eight_bits import int8_to_float16
from vlm.ops.kernels.jit import jit
from vlm.ops.layouts.int4_packing import chunk_of

WIDE = 8192  # outputs beyond which programs of whole rows are as many as the GPU runs at once


@jit
def _unpacked8(w, dtype: tl.constexpr):
    """Returns int8 or e4m3 in the type of x."""
    if w.dtype == tl.int8 and dtype == tl.float16:
        return int8_to_float16(w, PURE=True)
    return w.to(dtype)


@jit
def _unpacked4(w, NIBBLE: tl.constexpr, dtype: tl.constexpr):
    """Returns one of the four levels of an int16, less 8, in the type of x: as above, with the 128 of a bfloat16."""
    SHIFT: tl.constexpr = ("0", "4", "8", "12")[NIBBLE]  # pyright: ignore[reportArgumentType, reportAssignmentType]
    if dtype == tl.float32:
        return ((w >> (4 * NIBBLE)) & 15).to(tl.float32) - 8
    elif dtype == tl.float16:
        HALF: tl.constexpr = ("0", "0", "8", "8")[NIBBLE]  # pyright: ignore[reportArgumentType, reportAssignmentType]
        BITS: tl.constexpr = ("0x000F000F", "0x00F000F0")[NIBBLE % 2]  # pyright: ignore[reportArgumentType, reportAssignmentType]
        # of the higher nibble, 1024 + 16 level, a sixteenth less 72
        LESS: tl.constexpr = (  # pyright: ignore[reportAssignmentType]
            "mov.b32 v, 0x64086408; sub.rn.f16x2 $0, u, v;",
            ".reg .b32 part; mov.b32 part, 0x2C002C00; mov.b32 v, 0xD480D480; fma.rn.f16x2 $0, u, part, v;",
        )[NIBBLE % 2]  # pyright: ignore[reportArgumentType]
        return tl.inline_asm_elementwise(
            "{ .reg .b32 u, v; shr.b32 u, $1, " + HALF + "; lop3.b32 u, u, "  # pyright: ignore[reportArgumentType]
            + BITS + ", 0x64006400, 0xEA; " + LESS + "}",
            "=r,r", [w], dtype=tl.float16, is_pure=True, pack=2,
        )  # fmt: skip
    else:
        return tl.inline_asm_elementwise(
            "{ .reg .b32 u, one, offset; shr.b32 u, $1, " + SHIFT + "; lop3.b32 u, u, 0x000F000F, 0x43004300, 0xEA; "  # pyright: ignore[reportArgumentType]
            "mov.b32 one, 0x3F803F80; mov.b32 offset, 0xC308C308; fma.rn.bf16x2 $0, u, one, offset; }",
            "=r,r", [w], dtype=tl.bfloat16, is_pure=True, pack=2,
        )  # fmt: skip


@jit
def _finish(
    acc, scale_ptr, b_ptr, y_ptr, R, N,
    SLICES: tl.constexpr, SCALE: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """Sums the products [BN, BM] of equal slices and stores what they are activated to, the columns as rows of y."""
    BN: tl.constexpr = acc.shape[0]
    BM: tl.constexpr = acc.shape[1]
    if SLICES > 1:
        equal = (tl.arange(0, BN) % SLICES)[:, None] == (tl.arange(0, BM) % SLICES)[None, :]
        acc = tl.where(equal, acc, 0.0)
        acc = tl.sum(tl.sum(tl.reshape(acc, [BN // SLICES, SLICES, BM // SLICES, SLICES]), 3), 1)
    n, inside = outputs(tl.arange(0, BN // SLICES), BN // SLICES, N, GATED)
    if SCALE:
        acc *= tl.load(scale_ptr + n, mask=inside, other=0.0)[:, None]
    if BIAS:
        acc += tl.load(b_ptr + n, mask=inside, other=0.0).to(tl.float32)[:, None]
    first_row = tl.program_id(1) * (BM // SLICES)
    store(finished(acc, ACT, GATED), y_ptr, R, N // 2 if GATED else N, first_row)


@dependent
def _linear8(
    x_ptr, w_ptr, scale_ptr, b_ptr, y_ptr, R, N, K,
    SLICES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr,
    ACT: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row, column = tl.arange(0, BN), tl.program_id(1) * BM + tl.arange(0, BM)
    n, w_inside = outputs(row // SLICES, BN // SLICES, N, GATED)
    steps = tl.cdiv(tl.cdiv(K, BK), SLICES)
    w_begin, x_begin = (row % SLICES) * (steps * BK), (column % SLICES) * (steps * BK)
    k = tl.arange(0, BK)
    w_at = w_ptr + (n.to(tl.int64) * K + w_begin)[:, None] + k[None, :]
    x_at = x_ptr + ((column // SLICES).to(tl.int64) * K + x_begin)[None, :] + k[:, None]
    w_inside, x_inside = w_inside[:, None], (column < R * SLICES)[None, :]
    acc = tl.zeros([BN, BM], tl.float32)
    for step in range(steps):
        if EVEN:
            w_mask, x_mask = w_inside, x_inside
        else:
            w_mask = w_inside & ((w_begin + step * BK)[:, None] + k[None, :] < K)
            x_mask = x_inside & ((x_begin + step * BK)[None, :] + k[:, None] < K)
        w = tl.load(w_at + step * BK, mask=w_mask, other=0.0)
        x = tl.load(x_at + step * BK, mask=x_mask, other=0.0)
        acc = tl.dot(_unpacked8(w, x.dtype), x, acc, input_precision="ieee")
    _finish(acc, scale_ptr, b_ptr, y_ptr, R, N, SLICES, True, BIAS, ACT, GATED)


@dependent
def _linear4(
    x_ptr, w_ptr, scale_ptr, zero_ptr, b_ptr, y_ptr, R, N, K,
    GROUP: tl.constexpr, CHUNK: tl.constexpr, SLICES: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    EVEN: tl.constexpr, ZERO: tl.constexpr, BIAS: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """A step is a chunk of inputs: int16 number j of it has the levels of inputs j, L + j, 2 L + j and 3 L + j."""
    L: tl.constexpr = CHUNK // 4
    let_next_start()
    wait_for_inputs()
    row, column = tl.arange(0, BN), tl.program_id(1) * BM + tl.arange(0, BM)
    n, w_inside = outputs(row // SLICES, BN // SLICES, N, GATED)
    chunks = K // CHUNK
    steps = tl.cdiv(chunks, SLICES)
    w_begin, x_begin = (row % SLICES) * steps, (column % SLICES) * steps
    n = n.to(tl.int64)
    k = tl.arange(0, L)
    w_at = w_ptr + ((n * chunks + w_begin) * L)[:, None] + k[None, :]
    x_at = x_ptr + ((column // SLICES).to(tl.int64) * K + x_begin * CHUNK)[None, :] + k[:, None]
    x_inside = column < R * SLICES
    first_group = n * (K // GROUP)
    acc = tl.zeros([BN, BM], tl.float32)
    for step in range(steps):
        w_mask, x_mask = w_inside, x_inside
        if not EVEN:
            w_mask, x_mask = w_inside & (w_begin + step < chunks), x_inside & (x_begin + step < chunks)
        w = tl.load(w_at + step * L, mask=w_mask[:, None], other=0)
        part = tl.zeros([BN, BM], tl.float32)
        sums = tl.zeros([BN, BM], tl.float32)  # of x alone, in every row: what zero points are multiplied by
        for i in tl.static_range(4):  # pyright: ignore[reportGeneralTypeIssues]
            x = tl.load(x_at + step * CHUNK + i * L, mask=x_mask[None, :], other=0.0)
            part = tl.dot(_unpacked4(w, i, x.dtype), x, part, input_precision="ieee")
            if ZERO:
                sums = tl.dot(tl.full([BN, L], 1.0, x.dtype), x, sums, input_precision="ieee")
            if i == 3 or ((i + 1) * L >= GROUP and (i + 1) * L % GROUP == 0):
                at = first_group + ((w_begin + step) * CHUNK + i * L) // GROUP
                scale = tl.load(scale_ptr + at, mask=w_mask, other=0.0)
                acc += part * scale[:, None]
                if ZERO:
                    zero = tl.load(zero_ptr + at, mask=w_mask, other=0).to(tl.float32) - 8
                    acc -= sums * (scale * zero)[:, None]
                part = tl.zeros([BN, BM], tl.float32)
                sums = tl.zeros([BN, BM], tl.float32)
    _finish(acc, scale_ptr, b_ptr, y_ptr, R, N, SLICES, False, BIAS, ACT, GATED)


@dataclass(frozen=True)
class Tile:
    """What one program computes: `bn` rows of the weight, cut into slices, times `bm` columns. Choices were measured on
    an H200 with the matrices of one and of seven billion parameters."""

    slices: int
    bm: int
    bn: int
    warps: int
    stages: int

    @classmethod
    def of_8_bits(cls, rows: int, outputs: int) -> Tile:
        wide = outputs > WIDE
        if rows == 1:
            return cls(slices=8, bm=8, bn=64, warps=4, stages=5)
        if rows <= 8:
            return cls(slices=1, bm=8, bn=32, warps=2, stages=6) if wide else cls(2, bm=16, bn=32, warps=2, stages=6)
        if rows <= 32:
            return cls(slices=1, bm=32, bn=32, warps=2, stages=5) if wide else cls(2, bm=64, bn=64, warps=4, stages=4)
        return cls(slices=1, bm=128 if wide else 64, bn=64, warps=4, stages=4)

    @classmethod
    def of_4_bits(cls, rows: int, outputs: int) -> Tile:
        wide = outputs > WIDE
        if rows == 1:
            return cls(slices=8, bm=8, bn=128 if wide else 64, warps=4, stages=3)
        if rows <= 8:
            return cls(slices=4, bm=32, bn=128 if outputs >= 4096 else 64, warps=4, stages=4)
        if rows <= 32:
            return cls(slices=1 if wide else 2, bm=32, bn=64, warps=4, stages=5)
        return cls(1, bm=128, bn=128, warps=8, stages=3) if wide else cls(1, bm=64, bn=64, warps=4, stages=4)

    def grid(self, rows: int, outputs: int) -> tuple[int, int]:
        return triton.cdiv(outputs * self.slices, self.bn), triton.cdiv(rows * self.slices, self.bm)

    @property
    def constants(self) -> dict[str, int]:
        return {
            "SLICES": self.slices, "BM": self.bm, "BN": self.bn, "num_warps": self.warps, "num_stages": self.stages
        }  # fmt: skip


def linear8(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    activation: Activation | None = None,
) -> Tensor:
    """Returns the activation of x (weight · scale)ᵀ + bias [R, N], x [R, K], weight [N, K] int8 or e4m3, scale [N, 1]
    float32."""
    if gemv.fits(x, weight, scale, None, activation):
        return gemv.linear(x, weight, scale, None, bias, dtype, activation)
    (rows, inputs), num_outputs = x.shape, len(weight)
    assert x.is_contiguous() and weight.is_contiguous()
    y = _result(rows, num_outputs, dtype, activation, x.device)
    tile = Tile.of_8_bits(rows, num_outputs)
    _linear8[tile.grid(rows, num_outputs)](
        x, weight, scale, weight if bias is None else bias, y, rows, num_outputs, inputs,
        BK=128, EVEN=inputs % (128 * tile.slices) == 0, BIAS=bias is not None, **tile.constants,
        **constants(activation),
    )  # fmt: skip
    return y


def linear4(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    activation: Activation | None = None,
) -> Tensor:
    """Returns the activation of x Wᵀ + bias [R, N], x [R, K] and W as vlm.ops.layouts.int4_packing.unpacked4 has it,
    for what `linear4_fits` says yes to."""
    if gemv.fits(x, packed, scale, zero, activation):
        return gemv.linear(x, packed, scale, zero, bias, dtype, activation)
    (rows, inputs), num_outputs, chunk = x.shape, len(packed), chunk_of(x.shape[1])
    assert x.is_contiguous() and packed.is_contiguous()
    y = _result(rows, num_outputs, dtype, activation, x.device)
    tile = Tile.of_4_bits(rows, num_outputs)
    _linear4[tile.grid(rows, num_outputs)](
        x, packed.view(torch.int16), scale, scale if zero is None else zero, packed if bias is None else bias, y,
        rows, num_outputs, inputs,
        GROUP=inputs // scale.shape[1], CHUNK=chunk, EVEN=inputs % (chunk * tile.slices) == 0, ZERO=zero is not None,
        BIAS=bias is not None, **tile.constants, **constants(activation),
    )  # fmt: skip
    return y


def _result(
    rows: int, num_outputs: int, dtype: torch.dtype, activation: Activation | None, device: torch.device
) -> Tensor:
    width = num_outputs if activation is None else activation.width(num_outputs)
    return torch.empty((rows, width), dtype=dtype, device=device)
