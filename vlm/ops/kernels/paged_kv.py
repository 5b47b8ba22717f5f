"""What kernels take of a layer's blocks beside keys and values."""

from __future__ import annotations

from torch import Tensor

from vlm.ops.layouts.paged_kv import PagedKV


def kernel_scales(kv: PagedKV) -> tuple[Tensor, Tensor]:
    """Returns the scales of keys and values, or what stands in their place."""
    if kv.key_scales is None or kv.value_scales is None:
        return kv.keys, kv.values
    return kv.key_scales, kv.value_scales


def scale_stride(kv: PagedKV) -> int:
    """Returns how far the scales of one block are from those of the next."""
    return 0 if kv.key_scales is None else kv.key_scales.stride(0)
