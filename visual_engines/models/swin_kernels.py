"""Triton kernels of the Swin encoder; imported only where tensors are on CUDA.

Windows are addressed where they lie: neither the cyclic shift nor the cut into windows moves any data. On an H200 that
and the norms take nougat-base's encoder from 2.5 to 1.1 ms a page (bfloat16, batches of 8).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _window_attention(
    qkv_ptr, fill_ptr, bias_ptr, out_ptr, H, W, ROWS, COLUMNS, scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr, SHIFT: tl.constexpr, FILL: tl.constexpr,
    T: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    AREA: tl.constexpr = WINDOW * WINDOW
    C: tl.constexpr = HEADS * DIM
    head = tl.program_id(0) % HEADS
    window = (tl.program_id(0) // HEADS) % (ROWS * COLUMNS)
    image = (tl.program_id(0) // HEADS // (ROWS * COLUMNS)).to(tl.int64)
    t, d = tl.arange(0, T), tl.arange(0, D)
    # where a cell is on the padded and shifted grid, and where it was before
    y, x = window // COLUMNS * WINDOW + t // WINDOW, window % COLUMNS * WINDOW + t % WINDOW
    row, column = (y + SHIFT) % (ROWS * WINDOW), (x + SHIFT) % (COLUMNS * WINDOW)
    cell = t < AREA
    inside = cell & (row < H) & (column < W)
    token = (image * H + row) * W + column
    channel = head * DIM + d
    there = inside[:, None] & (d < DIM)[None, :]
    at = qkv_ptr + token[:, None] * (3 * C) + channel[None, :]
    q = tl.load(at, mask=there, other=0.0)
    k = tl.load(at + C, mask=there, other=0.0)
    v = tl.load(at + 2 * C, mask=there, other=0.0)
    if FILL:  # padding is zero before the projection, the projection's bias after it
        padding = (cell & ~inside)[:, None]
        q = tl.where(padding, tl.load(fill_ptr + channel, mask=d < DIM, other=0.0)[None, :], q)
        k = tl.where(padding, tl.load(fill_ptr + C + channel, mask=d < DIM, other=0.0)[None, :], k)
        v = tl.where(padding, tl.load(fill_ptr + 2 * C + channel, mask=d < DIM, other=0.0)[None, :], v)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    bias = bias_ptr + (head * AREA + t[:, None]) * T + t[None, :]
    scores += tl.load(bias, mask=cell[:, None], other=0.0).to(tl.float32)
    if SHIFT:  # cells that were apart before the shift
        low = (y >= ROWS * WINDOW - WINDOW).to(tl.int32) + (y >= ROWS * WINDOW - SHIFT).to(tl.int32)
        right = (x >= COLUMNS * WINDOW - WINDOW).to(tl.int32) + (x >= COLUMNS * WINDOW - SHIFT).to(tl.int32)
        region = low * 3 + right
        scores += tl.where(region[:, None] != region[None, :], -100.0, 0.0)
    scores = tl.where(cell[None, :], scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    weights = weights / tl.sum(weights, 1)[:, None]
    found = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    tl.store(out_ptr + token[:, None] * C + channel[None, :], found.to(out_ptr.dtype.element_ty), mask=there)


def padded_area(window: int) -> int:
    """Cells of a window as the kernel takes them: a power of two."""
    return max(16, triton.next_power_of_2(window**2))


def window_attention(qkv: Tensor, fill: Tensor | None, bias: Tensor, window: int, shift: int) -> Tensor:
    """qkv [images, H, W, 3 C], of padding `fill` [3 C], bias [heads, window², padded_area] -> [images, H, W, C]"""
    images, height, width, channels = qkv.shape
    heads, channels = len(bias), channels // 3
    rows, columns = -(-height // window), -(-width // window)
    assert qkv.is_contiguous() and bias.is_contiguous() and bias.shape[1:] == (window**2, padded_area(window))
    out = qkv.new_empty(images, height, width, channels)
    area, dim = padded_area(window), channels // heads
    padded = (rows * window, columns * window) != (height, width)
    _window_attention[(images * rows * columns * heads,)](
        qkv, bias if fill is None else fill, bias, out, height, width, rows, columns, dim**-0.5,
        HEADS=heads, DIM=dim, WINDOW=window, SHIFT=shift, FILL=padded and fill is not None,
        T=area, D=max(16, triton.next_power_of_2(dim)), num_warps=4 if area <= 64 else 8,
    )  # fmt: skip
    return out


@triton.jit
def _add_norm(
    x_ptr, delta_ptr, weight_ptr, bias_ptr, stream_ptr, out_ptr, count, eps,
    C: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, WIDTH)
    at = row[:, None] * C + i[None, :]
    mask = (row < count)[:, None] & (i < C)[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta_ptr + at, mask=mask, other=0.0).to(tl.float32)
        # the statistics are those of the stored stream, as if the addition were an operation of its own
        x = x.to(stream_ptr.dtype.element_ty)
        tl.store(stream_ptr + at, x, mask=mask)
        x = x.to(tl.float32)
    centred = tl.where(mask, x - (tl.sum(x, 1) / C)[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / C + eps)[:, None]
    weight = tl.load(weight_ptr + i, mask=i < C, other=0.0).to(tl.float32)[None, :]
    bias = tl.load(bias_ptr + i, mask=i < C, other=0.0).to(tl.float32)[None, :]
    tl.store(out_ptr + at, (centred * scale * weight + bias).to(out_ptr.dtype.element_ty), mask=mask)


ELEMENTS = 2048  # a program: rows are short, and there are very many


def add_layer_norm(x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """s = x + delta; returns s and layer_norm(s), each [..., C]"""
    x, add = x.contiguous(), delta is not None
    width = x.shape[-1]
    count = x.numel() // width
    assert not add or delta.is_contiguous()
    stream, out = torch.empty_like(x) if add else x, torch.empty_like(x)
    padded = triton.next_power_of_2(width)
    rows = max(1, ELEMENTS // padded)
    _add_norm[(triton.cdiv(count, rows),)](
        x, delta if add else x, weight, bias, stream, out, count, eps,
        C=width, ROWS=rows, WIDTH=padded, ADD=add, num_warps=4,
    )  # fmt: skip
    return stream, out
