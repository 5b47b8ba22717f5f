"""Residual addition and norm in one pass: a program normalizes one or several rows, the statistics in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.norms_ahead import Norm, NormsAhead
from vlm.ops.kernels.rounding import Rounding, constants, pointers, store_rounded

ELEMENTS = 2048  # a program's, where rows are short and very many
MANY = 4096


@dependent
def _add_norm(
    x_ptr, delta_ptr, weight_ptr, bias_ptr, stream_ptr, out_ptr, values_ptr, scale_ptr, static_ptr, count, eps,
    C: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr, KEEP: tl.constexpr,
    CENTRE: tl.constexpr, ROUND: tl.constexpr, STATIC: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    let_next_start()
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, WIDTH)
    at = row[:, None] * C + i[None, :]
    mask = (row < count)[:, None] & (i < C)[None, :]
    weight = tl.load(weight_ptr + i, mask=i < C, other=0.0).to(tl.float32)
    wait_for_inputs()
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta_ptr + at, mask=mask, other=0.0).to(tl.float32)
        # the statistics are those of the stored stream, as if the addition were an operation of its own
        x = x.to(stream_ptr.dtype.element_ty)
        if KEEP:
            tl.store(stream_ptr + at, x, mask=mask)
        x = x.to(tl.float32)
    if CENTRE:
        x = tl.where(mask, x - (tl.sum(x, 1) / C)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 1) / C + eps)[:, None]
    y = x * scale * weight[None, :]
    if CENTRE:
        y += tl.load(bias_ptr + i, mask=i < C, other=0.0).to(tl.float32)[None, :]
    y = y.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at, y, mask=mask)
    if ROUND:
        y = tl.where(mask, y.to(tl.float32), 0.0)
        store_rounded(y, at, mask, row, row < count, values_ptr, scale_ptr, static_ptr, STATIC, LEAST, MOST)


def add_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, keeps_sum: bool = True
) -> tuple[Tensor, Tensor]:
    """Returns s = x + delta in x's type and its norm in weight's type, [..., C]: layer norm, or RMS norm where there is
    no bias. Where nobody reads the sum, `keeps_sum` False, something else may take its place."""
    x = x.contiguous()
    assert delta is None or (delta.is_contiguous() and delta.shape == x.shape)
    # of few rows it costs nothing, and who computes the norm ahead of a product may count on it
    is_kept = delta is not None and (keeps_sum or x.numel() // x.shape[-1] < MANY)
    stream = torch.empty_like(x) if is_kept else x
    out = torch.empty(x.shape, dtype=weight.dtype, device=x.device)
    norm = Norm(x, delta, weight, bias, eps, stream, out, _launch)
    if (ahead := NormsAhead.current()) is None or not ahead.offer(norm):
        norm.launch()
    return stream, out


def _launch(norm: Norm, rounding: Rounding | None) -> None:
    x, weight, width = norm.x, norm.gain, norm.x.shape[-1]
    count, padded = x.numel() // width, triton.next_power_of_2(width)
    rows = max(1, ELEMENTS // padded) if count >= MANY else 1
    _add_norm[(triton.cdiv(count, rows),)](
        x, x if norm.delta is None else norm.delta, weight, weight if norm.shift is None else norm.shift, norm.stream,
        norm.row, *pointers(rounding, norm.row), count, norm.eps,
        C=width, ROWS=rows, WIDTH=padded, ADD=norm.delta is not None, KEEP=norm.stream is not x,
        CENTRE=norm.shift is not None,
        ROUND=rounding is not None, **constants(rounding), num_warps=4 if rounding is None or count >= MANY else 16,
    )  # fmt: skip
