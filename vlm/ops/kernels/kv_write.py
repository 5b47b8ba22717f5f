"""A program a row: moves its keys and values of all heads into the paged cache."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.jit import jit


@jit
def _write(
    k_ptr, v_ptr, keys_ptr, values_ptr, tables_ptr, slots_ptr, positions_ptr,
    k_row, v_row, block_stride, head_stride, table_stride,
    HD: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    position = tl.load(positions_ptr + row)
    block = tl.load(tables_ptr + tl.load(slots_ptr + row) * table_stride + position // BLOCK).to(tl.int64)
    i = tl.arange(0, WIDTH)
    mask = i < HD
    to = block * block_stride + (i // D) * head_stride + (position % BLOCK) * D + i % D
    tl.store(keys_ptr + to, tl.load(k_ptr + row * k_row + i, mask=mask), mask=mask)
    tl.store(values_ptr + to, tl.load(v_ptr + row * v_row + i, mask=mask), mask=mask)


def kv_write(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, positions: Tensor):
    rows, heads, dim = k.shape
    assert k.stride(1) == dim and k.stride(2) == 1, "heads of a row must be contiguous"
    _write[(rows,)](
        k, v, keys, values, tables, slots, positions,
        k.stride(0), v.stride(0), keys.stride(0), keys.stride(1), tables.stride(0),
        HD=heads * dim, D=dim, BLOCK=keys.shape[2], WIDTH=triton.next_power_of_2(heads * dim), num_warps=4,
    )  # fmt: skip
