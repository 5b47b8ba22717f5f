"""What attention of a step does with the token that is new: its key and value are written, and read by nobody."""

from __future__ import annotations

import triton.language as tl

from vlm.ops.kernels.jit import jit
from vlm.ops.kernels.kv_write import in_8_bits
from vlm.ops.kernels.rotary import turned


@jit
def head_values(x_ptr, angles_ptr, i, D: tl.constexpr, HALF: tl.constexpr):
    """Returns a head's values float32, where HALF is not 0 turned, as if that were an operation of its own."""
    if HALF > 0:
        return turned(x_ptr, angles_ptr, i, D, HALF).to(x_ptr.dtype.element_ty).to(tl.float32)
    else:
        return tl.load(x_ptr + i, mask=i < D, other=0.0).to(tl.float32)


@jit
def _written(x, i, is_writer, kept_ptr, scale_ptr, D: tl.constexpr, MOST: tl.constexpr):
    """Writes a head's values x [WIDTH] float32, zeros beyond D, if this program is to. Returns them as they can be read
    there, float32."""
    if MOST > 0:
        y, scale = in_8_bits(x, kept_ptr.dtype.element_ty, MOST)
        tl.store(scale_ptr, scale, mask=is_writer)
    else:
        y, scale = x.to(kept_ptr.dtype.element_ty), 1.0
    tl.store(kept_ptr + i, y, mask=i < tl.where(is_writer, D, 0))
    return y.to(tl.float32) * scale


@jit
def new_token(
    k_ptr, v_ptr, angles_ptr, i, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, table_ptr, place, is_writer,
    block_stride, scale_stride, D: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    """Returns a head's key, turned, and value of the new token, [WIDTH] float32, as they are in the cache; one of the
    programs that ask writes them there. The pointers to the cache are those of the head in block 0."""
    block = tl.load(table_ptr + place // BLOCK).to(tl.int64)
    to, at = block * block_stride + (place % BLOCK) * D, block * scale_stride + place % BLOCK
    k = head_values(k_ptr, angles_ptr, i, D, HALF)
    v = head_values(v_ptr, angles_ptr, i, D, 0)
    return (
        _written(k, i, is_writer, keys_ptr + to, key_scales_ptr + at, D, MOST),
        _written(v, i, is_writer, values_ptr + to, value_scales_ptr + at, D, MOST),
    )
