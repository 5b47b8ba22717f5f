"""Queries and keys are normed by one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.heads import heads_each


@dependent
def _qk_norm(
    q_ptr, k_ptr, q_weight_ptr, k_weight_ptr, out_ptr, q_row, k_row, count, eps,
    H: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    at = tl.program_id(0).to(tl.int64) * EACH + tl.arange(0, EACH)
    row, head, i = at // HEADS, at % HEADS, tl.arange(0, WIDTH)
    is_q, mask = (head < H)[:, None], (at < count)[:, None] & (i < D)[None, :]
    q_ptr += (row * q_row + head * D)[:, None] + i[None, :]
    k_ptr += (row * k_row + (head - H) * D)[:, None] + i[None, :]
    x = tl.load(q_ptr, mask=mask & is_q, other=0.0).to(tl.float32)
    x += tl.load(k_ptr, mask=mask & (head >= H)[:, None], other=0.0).to(tl.float32)
    q_weight = tl.load(q_weight_ptr + i, mask=i < D, other=0.0).to(tl.float32)
    k_weight = tl.load(k_weight_ptr + i, mask=i < D, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 1) / D + eps)[:, None] * tl.where(is_q, q_weight[None, :], k_weight[None, :])
    tl.store(out_ptr + (at * D)[:, None] + i[None, :], y.to(out_ptr.dtype.element_ty), mask=mask)


def qk_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    (rows, heads, dim), kv_heads = q.shape, k.shape[1]
    assert all(x.stride(1) == dim and x.stride(2) == 1 for x in (q, k)), "heads of a row must be contiguous"
    out = torch.empty((rows, heads + kv_heads, dim), dtype=q_weight.dtype, device=q.device)
    count = rows * (heads + kv_heads)
    each, warps = heads_each(count)
    _qk_norm[(triton.cdiv(count, each),)](
        q, k, q_weight, k_weight, out, q.stride(0), k.stride(0), count, eps, H=heads, HEADS=heads + kv_heads, D=dim,
        WIDTH=triton.next_power_of_2(dim), EACH=each, num_warps=warps,
    )  # fmt: skip
    return out[:, :heads], out[:, heads:]
