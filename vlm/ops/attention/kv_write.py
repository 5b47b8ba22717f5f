"""Writes key and value rows into their places in a paged cache."""

from __future__ import annotations

from torch import Tensor

from vlm.ops.layouts.paged_kv import PagedKV, quantized


def reference(k: Tensor, v: Tensor, kv: PagedKV, tables: Tensor, slots: Tensor, positions: Tensor) -> None:
    if len(k) == 1:  # without the many small operations that several rows take
        block, places = divmod(int(positions), kv.block_size)
        blocks, k, v = int(tables[int(slots), block]), k[0], v[0]
    else:
        positions = positions.long()
        blocks, places = tables[slots.long(), positions // kv.block_size].long(), positions % kv.block_size
    for rows, kept, scales in ((k, kv.keys, kv.key_scales), (v, kv.values, kv.value_scales)):
        if scales is None:
            kept[blocks, :, places] = rows
        else:
            kept[blocks, :, places], scales[blocks, :, places] = quantized(rows, kept.dtype)


def kv_write(k: Tensor, v: Tensor, kv: PagedKV, tables: Tensor, slots: Tensor, positions: Tensor) -> None:
    """Writes keys[tables[slot, position // block_size], :, position % block_size] = k, values likewise, in place.

    k, v [R, H, D] (may be strided views); tables [S, n] int32; slots, positions [R] int32
    """
    if k.is_cuda:
        from vlm.ops.kernels.kv_write import kv_write as kernel

        kernel(k, v, kv, tables, slots, positions)
    else:
        reference(k, v, kv, tables, slots, positions)
