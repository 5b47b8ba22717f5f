"""Scales each row by its own adapter's vector ((IA)³, https://arxiv.org/abs/2205.05638)."""

from __future__ import annotations

from torch import Tensor


def reference(x: Tensor, adapter_ids: Tensor, scales: Tensor, shifts: Tensor | None = None) -> Tensor:
    y = x * scales[adapter_ids]
    return (y if shifts is None else y + shifts[adapter_ids]).to(x.dtype)


def scale_rows(x: Tensor, adapter_ids: Tensor, scales: Tensor, shifts: Tensor | None = None) -> Tensor:
    """Computes x ⊙ scales[adapter_ids] + shifts[adapter_ids] of x [R, width], in float32 and back in the type of x.

    adapter_ids [R] int32; scales, shifts [n + 1, width] float32, whose last row is that of NO_ADAPTER, -1
    """
    if x.is_cuda:
        from vlm.ops.kernels.scale_rows import scale_rows as kernel

        return kernel(x, adapter_ids, scales, shifts)
    return reference(x, adapter_ids, scales, shifts)
