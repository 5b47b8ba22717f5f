"""Values of 8 bits made ones of float16, mostly in the registers that they are loaded into.

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
def _e4m3_to_float16(x, PURE: tl.constexpr):
    """Returns float16 of e4m3."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b16 low, high;
        mov.b32 {low, high}, $2;
        cvt.rn.f16x2.e4m3x2 $0, low;
        cvt.rn.f16x2.e4m3x2 $1, high;
        }""",
        "=r,=r,r", [x], dtype=tl.float16, is_pure=PURE, pack=4,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


@jit
def in_16_bits(x, dtype: tl.constexpr, PURE: tl.constexpr):
    """Returns int8 or e4m3 in the type of its product: float32, or float16, in the registers that x is loaded into;
    PURE: or where Triton likes, which of rows that nothing transposes is behind shared memory."""
    if dtype == tl.float32:
        return x.to(tl.float32)
    else:
        return int8_to_float16(x, PURE) if x.dtype == tl.int8 else _e4m3_to_float16(x, PURE)


@jit
def query_for_8_bits(q, scale, dtype: tl.constexpr):
    """Returns queries [M, D] in the type of their product with keys of 8 bits, and by what their scores are multiplied,
    [M, 1] or a number. Where the model's is bfloat16 that is float16, which holds all values of 8 bits and takes
    fewer instructions to make of them; each query is divided by its highest value, as bfloat16 has higher ones."""
    if dtype == tl.bfloat16:
        q = q.to(tl.float32)
        peak = tl.maximum(tl.max(tl.abs(q), 1), 1e-30)[:, None]
        return (q / peak).to(tl.float16), scale * peak
    else:
        return q.to(dtype), scale


@jit
def relative(scales):
    """Returns scales [N] divided by the highest one, and that one: float16 may not hold their products."""
    peak = tl.maximum(tl.max(scales, 0), 1e-30)
    return scales / peak, peak
