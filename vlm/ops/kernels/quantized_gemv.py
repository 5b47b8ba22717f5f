"""Matrix-vector products of one row in 16 bits with weights of 8 and 4 bits, on the vector units.

A program is one warp, which waits for no other and has what it reads next on its way. Weights are read and unpacked as
words of 32 bits; products of 8 bits are summed in float32, of 4 bits in float16 four at a time, then in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.jit import jit

CHUNK = tl.constexpr(128)  # inputs whose levels of 4 bits lie together (vlm.ops.int4_packing)
# the type of x -> four of them from 64 bits, as float32
X_VALUES = {
    torch.float16: """
        .reg .b32 x01, x23; .reg .b16 h0, h1, h2, h3;
        mov.b64 {x01, x23}, $2; mov.b32 {h0, h1}, x01; mov.b32 {h2, h3}, x23;
        cvt.f32.f16 x0, h0; cvt.f32.f16 x1, h1; cvt.f32.f16 x2, h2; cvt.f32.f16 x3, h3;""",
    torch.bfloat16: """
        .reg .b32 x01, x23;
        mov.b64 {x01, x23}, $2;
        shl.b32 x0, x01, 16; and.b32 x1, x01, 0xFFFF0000; shl.b32 x2, x23, 16; and.b32 x3, x23, 0xFFFF0000;""",
}
# the type of the weight -> four of them from 32 bits, as float32: a byte of an int8 becomes the lowest one of 2^23
W_VALUES = {
    torch.int8: """
        .reg .b32 u; .reg .f32 less;
        xor.b32 u, $1, 0x80808080; mov.b32 less, 0x4B000080;
        prmt.b32 w0, u, 0x4B000000, 0x7440; prmt.b32 w1, u, 0x4B000000, 0x7441;
        prmt.b32 w2, u, 0x4B000000, 0x7442; prmt.b32 w3, u, 0x4B000000, 0x7443;
        sub.f32 w0, w0, less; sub.f32 w1, w1, less; sub.f32 w2, w2, less; sub.f32 w3, w3, less;""",
    torch.float8_e4m3fn: """
        .reg .b16 lower, upper, g0, g1, g2, g3; .reg .b32 w01, w23;
        mov.b32 {lower, upper}, $1;
        cvt.rn.f16x2.e4m3x2 w01, lower; cvt.rn.f16x2.e4m3x2 w23, upper;
        mov.b32 {g0, g1}, w01; mov.b32 {g2, g3}, w23;
        cvt.f32.f16 w0, g0; cvt.f32.f16 w1, g1; cvt.f32.f16 w2, g2; cvt.f32.f16 w3, g3;""",
}
DOT8 = """
        fma.rn.f32 $0, w0, x0, $3; fma.rn.f32 $0, w1, x1, $0; fma.rn.f32 $0, w2, x2, $0; fma.rn.f32 $0, w3, x3, $0;"""
# of eight levels and the x of their quarters, pairs in 32 bits: levels lie in the lowest bits of 1024, or of 1024 times
# sixteen; a sixteenth of what they stand for is taken, so that no product leaves float16
DOT4 = tl.constexpr("""{
        .reg .b32 u, v, pair, sixteenth, even, part, odd; .reg .b16 h0, h1; .reg .f32 first, second;
        mov.b32 sixteenth, 0x2C002C00; mov.b32 even, 0xD408D408; mov.b32 part, 0x1C001C00; mov.b32 odd, 0xC480C480;
        shr.b32 v, $1, 8;
        lop3.b32 u, $1, 0x000F000F, 0x64006400, 0xEA; fma.rn.f16x2 u, u, sixteenth, even;
        mul.rn.f16x2 pair, u, $2;
        lop3.b32 u, $1, 0x00F000F0, 0x64006400, 0xEA; fma.rn.f16x2 u, u, part, odd;
        fma.rn.f16x2 pair, u, $3, pair;
        lop3.b32 u, v, 0x000F000F, 0x64006400, 0xEA; fma.rn.f16x2 u, u, sixteenth, even;
        fma.rn.f16x2 pair, u, $4, pair;
        lop3.b32 u, v, 0x00F000F0, 0x64006400, 0xEA; fma.rn.f16x2 u, u, part, odd;
        fma.rn.f16x2 pair, u, $5, pair;
        mov.b32 {h0, h1}, pair; cvt.f32.f16 first, h0; cvt.f32.f16 second, h1; add.f32 $0, first, second;
        }""")


@jit
def _sums_of_four(values):
    """Adds up neighbours, which one thread has: [R, W] -> [R, W / 4]"""
    return tl.sum(tl.reshape(values, [values.shape[0], values.shape[1] // 4, 4]), 2)


@dependent
def _gemv8(
    x_ptr, w_ptr, scale_ptr, b_ptr, y_ptr, N, WIDTH,
    DOT: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """x_ptr points at words of 64 bits, w_ptr at rows of WIDTH words of 32 bits."""
    let_next_start()
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, TILE)
    row = w_ptr + n[:, None].to(tl.int64) * WIDTH + i[None, :]
    w = tl.load(row, mask=(n < N)[:, None] & (i < WIDTH)[None, :], other=0)  # on its way while x is not there yet
    scale = tl.load(scale_ptr + n, mask=n < N, other=0.0)
    wait_for_inputs()
    acc = tl.zeros([ROWS, TILE], tl.float32)
    for start in range(0, WIDTH, TILE):
        x = tl.load(x_ptr + start + i, mask=start + i < WIDTH, other=0)
        acc = tl.inline_asm_elementwise(DOT, "=&f,r,l,f", [w, x[None, :], acc], dtype=tl.float32, is_pure=True, pack=1)
        following = start + TILE
        w = tl.load(row + following, mask=(n < N)[:, None] & (following + i < WIDTH)[None, :], other=0)
    y = tl.sum(acc, 1) * scale
    if BIAS:
        y += tl.load(b_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + n, y.to(y_ptr.dtype.element_ty), mask=n < N)


@dependent
def _gemv4(
    x_ptr, w_ptr, scale_ptr, b_ptr, y_ptr, N, WIDTH,
    DOT: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """x_ptr points at words of 32 bits, w_ptr at rows of WIDTH such words, each with the levels of eight inputs."""
    QUARTER: tl.constexpr = CHUNK // 8  # words of 32 bits: of the x of a chunk's quarter, and of a chunk's levels
    let_next_start()
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i, four = tl.arange(0, TILE), tl.arange(0, TILE // 4)
    row = w_ptr + n[:, None].to(tl.int64) * WIDTH + i[None, :]
    w = tl.load(row, mask=(n < N)[:, None] & (i < WIDTH)[None, :], other=0)  # on its way while x is not there yet
    wait_for_inputs()
    acc = tl.zeros([ROWS, TILE // 4], tl.float32)
    for start in range(0, WIDTH, TILE):
        x_at = x_ptr + (start + i) // QUARTER * (4 * QUARTER) + (start + i) % QUARTER
        inside = start + i < WIDTH
        x0 = tl.load(x_at, mask=inside, other=0)
        x1 = tl.load(x_at + QUARTER, mask=inside, other=0)
        x2 = tl.load(x_at + 2 * QUARTER, mask=inside, other=0)
        x3 = tl.load(x_at + 3 * QUARTER, mask=inside, other=0)
        products = tl.inline_asm_elementwise(
            DOT, "=&f,r,r,r,r,r", [w, x0[None, :], x1[None, :], x2[None, :], x3[None, :]],
            dtype=tl.float32, is_pure=True, pack=1,
        )  # fmt: skip
        group = (start + 4 * four) * 8 // GROUP
        scaled = (n < N)[:, None] & (start + 4 * four < WIDTH)[None, :]
        scale = tl.load(scale_ptr + n[:, None] * (WIDTH * 8 // GROUP) + group[None, :], mask=scaled, other=0.0)
        acc += _sums_of_four(products) * scale
        following = start + TILE
        w = tl.load(row + following, mask=(n < N)[:, None] & (following + i < WIDTH)[None, :], other=0)
    y = tl.sum(acc, 1) * 16
    if BIAS:
        y += tl.load(b_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + n, y.to(y_ptr.dtype.element_ty), mask=n < N)


def fits8(x: Tensor) -> bool:
    """Tells whether x [R, K] is one row that `linear8` here takes."""
    return len(x) == 1 and x.dtype in X_VALUES and x.shape[1] % 4 == 0


def fits4(x: Tensor, groups: int, zero: Tensor | None) -> bool:
    """Tells whether x [R, K] is one row that `linear4` here takes: with a scale for whole chunks and no zero points."""
    whole = x.shape[1] % CHUNK.value == 0 and (x.shape[1] // groups) % CHUNK.value == 0
    return len(x) == 1 and x.dtype == torch.float16 and zero is None and whole


def linear8(x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns x (weight · scale)ᵀ + bias [1, N] of x [1, K], weight [N, K] int8 or e4m3, scale [N, 1] float32."""
    assert x.is_contiguous() and weight.is_contiguous()
    outputs, width = len(weight), x.shape[1] // 4
    y = torch.empty((1, outputs), dtype=dtype, device=x.device)
    dot = "{ .reg .f32 x0, x1, x2, x3, w0, w1, w2, w3;" + X_VALUES[x.dtype] + W_VALUES[weight.dtype] + DOT8 + " }"
    rows, tile = ROWS8, min(TILE8, triton.next_power_of_2(width))
    _gemv8[(triton.cdiv(outputs, rows),)](
        x.view(torch.int64), weight.view(torch.int32), scale, weight if bias is None else bias, y, outputs, width,
        DOT=dot, ROWS=rows, TILE=max(4, tile), BIAS=bias is not None, num_warps=1,
    )  # fmt: skip
    return y


def linear4(x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns x Wᵀ + bias [1, N] of x [1, K] and W as vlm.ops.int4_packing.unpacked4 has it."""
    assert x.is_contiguous() and packed.is_contiguous()
    outputs, width = len(packed), x.shape[1] // 8
    y = torch.empty((1, outputs), dtype=dtype, device=x.device)
    rows, tile = ROWS4, min(TILE4, triton.next_power_of_2(width))
    _gemv4[(triton.cdiv(outputs, rows),)](
        x.view(torch.int32), packed.view(torch.int32), scale, packed if bias is None else bias, y, outputs, width,
        DOT=DOT4, GROUP=x.shape[1] // scale.shape[1], ROWS=rows, TILE=tile, BIAS=bias is not None, num_warps=1,
    )  # fmt: skip
    return y


ROWS8, TILE8 = 2, 512  # weight rows a program, words of a row at once
ROWS4, TILE4 = 4, 256
