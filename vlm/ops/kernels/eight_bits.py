"""Values of 8 bits made ones of 16 in the registers that they are loaded into.

Triton takes a conversion ahead of a product for cheap, and lets values come to where tensor cores want them as they
are: of 8 bits, whose rows nothing transposes, one byte at a time. What may have effects (is not pure) it leaves where
it stands.
"""

from __future__ import annotations

import triton.language as tl

from vlm.ops.kernels.jit import jit


@jit
def int8_to_float16(x, PURE: tl.constexpr):
    """Returns float16 of int8: what is laid into the lowest bits of the 1024 of a float16 is added to it."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 u, low, high, offset;
        xor.b32 u, $2, 0x80808080;
        prmt.b32 low, u, 0x64646464, 0x5150;
        prmt.b32 high, u, 0x64646464, 0x5352;
        mov.b32 offset, 0x64806480;
        sub.rn.f16x2 $0, low, offset;
        sub.rn.f16x2 $1, high, offset;
        }""",
        "=r,=r,r", [x], dtype=tl.float16, is_pure=PURE, pack=4,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


@jit
def _int8_to_bfloat16(x):
    """Returns bfloat16 of int8, by way of float32: seven bits have no room for an offset."""
    return tl.inline_asm_elementwise(
        """{
        .reg .s32 i<4>;
        .reg .f32 f<4>;
        bfe.s32 i0, $2, 0, 8;
        bfe.s32 i1, $2, 8, 8;
        bfe.s32 i2, $2, 16, 8;
        bfe.s32 i3, $2, 24, 8;
        cvt.rn.f32.s32 f0, i0;
        cvt.rn.f32.s32 f1, i1;
        cvt.rn.f32.s32 f2, i2;
        cvt.rn.f32.s32 f3, i3;
        cvt.rn.bf16x2.f32 $0, f1, f0;
        cvt.rn.bf16x2.f32 $1, f3, f2;
        }""",
        "=r,=r,r", [x], dtype=tl.bfloat16, is_pure=False, pack=4,
    )  # fmt: skip


@jit
def _e4m3_to_float16(x):
    """Returns float16 of e4m3."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        mov.b32 {low, high}, $2;
        cvt.rn.f16x2.e4m3x2 $0, low;
        cvt.rn.f16x2.e4m3x2 $1, high;
        }""",
        "=r,=r,r", [x], dtype=tl.float16, is_pure=False, pack=4,
    )  # fmt: skip


@jit
def _e4m3_to_bfloat16(x):
    """Returns bfloat16 of numbers in e4m3: their exponents count from 7, not from 127, which a product by 2^120 makes
    up for, those of subnormal numbers, too."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 low, high, sign, by, zero;
        mov.b32 by, 0x7B807B80;
        mov.b32 zero, 0x80008000;
        prmt.b32 low, $2, 0, 0x1404;
        prmt.b32 high, $2, 0, 0x3424;
        and.b32 sign, low, 0x80008000;
        shr.b32 low, low, 4;
        lop3.b32 low, low, 0x07F007F0, sign, 0xEA;
        fma.rn.bf16x2 $0, low, by, zero;
        and.b32 sign, high, 0x80008000;
        shr.b32 high, high, 4;
        lop3.b32 high, high, 0x07F007F0, sign, 0xEA;
        fma.rn.bf16x2 $1, high, by, zero;
        }""",
        "=r,=r,r", [x], dtype=tl.bfloat16, is_pure=False, pack=4,
    )  # fmt: skip


@jit
def in_16_bits(x, dtype: tl.constexpr):
    """Returns int8 or e4m3 in the type of a product's other side: where that has 16 bits, in the registers that x is
    loaded into."""
    if dtype == tl.float16:
        return int8_to_float16(x, PURE=False) if x.dtype == tl.int8 else _e4m3_to_float16(x)
    elif dtype == tl.bfloat16:
        return _int8_to_bfloat16(x) if x.dtype == tl.int8 else _e4m3_to_bfloat16(x)
    else:
        return x.to(dtype)
