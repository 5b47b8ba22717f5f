"""A program a row and head: queries and keys are normed by one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs


@dependent
def _qk_norm(
    q_ptr, k_ptr, q_weight_ptr, k_weight_ptr, out_ptr, q_row, k_row, eps,
    H: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, WIDTH)
    if head < H:
        weight = tl.load(q_weight_ptr + i, mask=i < D, other=0.0).to(tl.float32)
        x = tl.load(q_ptr + row * q_row + head * D + i, mask=i < D, other=0.0).to(tl.float32)
    else:
        weight = tl.load(k_weight_ptr + i, mask=i < D, other=0.0).to(tl.float32)
        x = tl.load(k_ptr + row * k_row + (head - H) * D + i, mask=i < D, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x) / D + eps) * weight
    tl.store(out_ptr + (row * HEADS + head) * D + i, y.to(out_ptr.dtype.element_ty), mask=i < D)


def qk_norm(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    (rows, heads, dim), kv_heads = q.shape, k.shape[1]
    assert all(x.stride(1) == dim and x.stride(2) == 1 for x in (q, k)), "heads of a row must be contiguous"
    out = torch.empty((rows, heads + kv_heads, dim), dtype=q_weight.dtype, device=q.device)
    _qk_norm[(rows, heads + kv_heads)](
        q, k, q_weight, k_weight, out, q.stride(0), k.stride(0), eps,
        H=heads, HEADS=heads + kv_heads, D=dim, WIDTH=triton.next_power_of_2(dim), num_warps=1,
    )  # fmt: skip
    return out[:, :heads], out[:, heads:]
