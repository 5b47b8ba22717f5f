"""A program a row, or where the cache is quantized a row and head: moves its keys and values into the paged cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, wait_for_inputs
from vlm.ops.kernels.jit import jit
from vlm.ops.kernels.paged_kv import kernel_scales, scale_stride
from vlm.ops.layouts.paged_kv import MOST, PagedKV


@dependent
def _write(
    k_ptr, v_ptr, keys_ptr, values_ptr, tables_ptr, slots_ptr, positions_ptr,
    k_row, v_row, block_stride, head_stride, table_stride,
    HD: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + row)
    block = tl.load(tables_ptr + tl.load(slots_ptr + row) * table_stride + position // BLOCK).to(tl.int64)
    i = tl.arange(0, WIDTH)
    mask = i < HD
    to = block * block_stride + (i // D) * head_stride + (position % BLOCK) * D + i % D
    tl.store(keys_ptr + to, tl.load(k_ptr + row * k_row + i, mask=mask), mask=mask)
    tl.store(values_ptr + to, tl.load(v_ptr + row * v_row + i, mask=mask), mask=mask)


@jit
def in_8_bits(x, dtype: tl.constexpr, MOST: tl.constexpr):
    """Returns a head's values x [WIDTH] float32 in 8 bits, and their scale."""
    scale = tl.maximum(tl.max(tl.abs(x)), 1e-20) / MOST
    y = tl.minimum(tl.maximum(x / scale, -MOST), MOST)
    if dtype == tl.int8:
        y = tl.floor(y + 0.5)
    return y.to(dtype), scale  # pyright: ignore[reportArgumentType]


@jit
def store_quantized(x, i, kept_ptr, scale_ptr, D: tl.constexpr, MOST: tl.constexpr):
    """Stores a head's values x [WIDTH] float32, zeros beyond D, in 8 bits, and their scale."""
    y, scale = in_8_bits(x, kept_ptr.dtype.element_ty, MOST)
    tl.store(kept_ptr + i, y, mask=i < D)
    tl.store(scale_ptr, scale)


@dependent
def _write_quantized(
    k_ptr, v_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr, tables_ptr, slots_ptr, positions_ptr,
    k_row, v_row, block_stride, head_stride, scale_stride, table_stride,
    D: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions_ptr + row)
    block = tl.load(tables_ptr + tl.load(slots_ptr + row) * table_stride + position // BLOCK).to(tl.int64)
    i = tl.arange(0, WIDTH)
    to = block * block_stride + head * head_stride + (position % BLOCK) * D
    at = block * scale_stride + head * BLOCK + position % BLOCK
    k = tl.load(k_ptr + row * k_row + head * D + i, mask=i < D, other=0.0).to(tl.float32)
    store_quantized(k, i, keys_ptr + to, key_scales_ptr + at, D, MOST)
    v = tl.load(v_ptr + row * v_row + head * D + i, mask=i < D, other=0.0).to(tl.float32)
    store_quantized(v, i, values_ptr + to, value_scales_ptr + at, D, MOST)


def kv_write(k: Tensor, v: Tensor, kv: PagedKV, tables: Tensor, slots: Tensor, positions: Tensor) -> None:
    rows, heads, dim = k.shape
    assert k.stride(1) == dim and k.stride(2) == 1, "heads of a row must be contiguous"
    strides = (k.stride(0), v.stride(0), kv.keys.stride(0), kv.keys.stride(1))
    if not kv.is_quantized:
        _write[(rows,)](
            k, v, kv.keys, kv.values, tables, slots, positions, *strides, tables.stride(0),
            HD=heads * dim, D=dim, BLOCK=kv.block_size, WIDTH=triton.next_power_of_2(heads * dim), num_warps=4,
        )  # fmt: skip
        return
    _write_quantized[(rows, heads)](
        k, v, kv.keys, kv.values, *kernel_scales(kv), tables, slots, positions,
        *strides, scale_stride(kv), tables.stride(0),
        D=dim, BLOCK=kv.block_size, WIDTH=triton.next_power_of_2(dim), MOST=MOST[kv.keys.dtype], num_warps=1,
    )  # fmt: skip
