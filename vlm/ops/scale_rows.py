"""Scales each row by its own adapter's vector ((IA)³, https://arxiv.org/abs/2205.05638)."""

from __future__ import annotations

from torch import Tensor


def reference(x: Tensor, adapter_ids: Tensor, scales: Tensor) -> Tensor:
    return (x * scales[adapter_ids]).to(x.dtype)


def scale_rows(x: Tensor, adapter_ids: Tensor, scales: Tensor) -> Tensor:
    """Computes x ⊙ scales[adapter_ids] of x [R, width], in float32 and back in the type of x.

    adapter_ids [R] int32; scales [n + 1, width] float32, whose last row is that of NO_ADAPTER, -1
    """
    if x.is_cuda:
        from vlm.ops.kernels.scale_rows import scale_rows as kernel

        return kernel(x, adapter_ids, scales)
    return reference(x, adapter_ids, scales)
