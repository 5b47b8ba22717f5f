"""Writes key and value rows into their places in a paged cache."""

from __future__ import annotations

from torch import Tensor


def reference(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, positions: Tensor):
    block_size = keys.shape[2]
    positions = positions.long()
    blocks = tables[slots.long(), positions // block_size].long()
    keys[blocks, :, positions % block_size] = k
    values[blocks, :, positions % block_size] = v


def kv_write(
    k: Tensor, v: Tensor, keys: Tensor, values: Tensor, tables: Tensor, slots: Tensor, positions: Tensor
) -> None:
    """Writes keys[tables[slot, position // block_size], :, position % block_size] = k, values likewise, in place.

    k, v [R, H, D] (may be strided views); keys, values [blocks, H, block_size, D]; tables [S, n] int32;
    slots, positions [R] int32
    """
    if k.is_cuda:
        from vlm.ops.kernels.kv_write import kv_write as kernel

        kernel(k, v, keys, values, tables, slots, positions)
    else:
        reference(k, v, keys, values, tables, slots, positions)
