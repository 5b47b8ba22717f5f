"""RMS norms of each head's queries and keys (Qwen3, arXiv:2505.09388), before their positions turn them."""

from __future__ import annotations

from torch import Tensor

from vlm.ops.add_rms_norm import add_rms_norm


def qk_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Maps q [R, H, D], k [R, H_kv, D] (may be strided views), weights [D] -> both normed, head by head"""
    if q.is_cuda:
        from vlm.ops.kernels.qk_norm import qk_norm as kernel

        return kernel(q, k, q_weight, k_weight, eps)
    return add_rms_norm(q, None, q_weight, eps)[1], add_rms_norm(k, None, k_weight, eps)[1]
