"""Triton kernels of the Swin encoder; imported only where tensors are on CUDA.

Windows are addressed where they lie: neither the cyclic shift nor the cut into windows moves any data. On an H200 that
and the fused norms take nougat-base's encoder from 2.5 to 1.0 ms a page (bfloat16, batches of 8).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.attention_variant import PLAIN
from vlm.ops.kernels.attention_variant import product_scale
from vlm.ops.kernels.device import num_processors
from vlm.ops.kernels.jit import jit

QUERY_ROWS = 64  # of a program: of as many keys as that, or 128, scores and biases have registers
WAVES = 16  # of programs on each processor; where there would be more, each has several windows
MOST_WINDOWS = 16
MERGED_VALUES = 4096  # of a program


@jit
def _place(window, t, H, W, ROWS, COLUMNS, WINDOW: tl.constexpr, SHIFT: tl.constexpr):
    """Returns where the cells of a window are, in their image and whether they are within, and in which of the nine
    regions of the padded grid that the shift leaves apart."""
    y, x = window // COLUMNS % ROWS * WINDOW + t // WINDOW, window % COLUMNS * WINDOW + t % WINDOW
    row, column = (y + SHIFT) % (ROWS * WINDOW), (x + SHIFT) % (COLUMNS * WINDOW)
    inside = (t < WINDOW * WINDOW) & (row < H) & (column < W)
    low = (y >= ROWS * WINDOW - WINDOW).to(tl.int32) + (y >= ROWS * WINDOW - SHIFT).to(tl.int32)
    right = (x >= COLUMNS * WINDOW - WINDOW).to(tl.int32) + (x >= COLUMNS * WINDOW - SHIFT).to(tl.int32)
    image = (window // (ROWS * COLUMNS)).to(tl.int64)
    return (image * H + row) * W + column, inside, low * 3 + right


@jit
def _values(at, fill_ptr, d, inside, is_cell, DIM: tl.constexpr, FILL: tl.constexpr):
    """Returns the rows of a head. Padding is zero before the projection, the projection's bias after it."""
    x = tl.load(at + d[None, :], mask=inside[:, None] & (d < DIM)[None, :], other=0.0)
    if FILL:
        fill = tl.load(fill_ptr + d, mask=d < DIM, other=0.0)
        x = tl.where((is_cell & ~inside)[:, None], fill[None, :], x)
    return x


@jit
def _window_attention(
    qkv_ptr, fill_ptr, bias_ptr, out_ptr, count, H, W, ROWS, COLUMNS, scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, WINDOW: tl.constexpr, SHIFT: tl.constexpr, FILL: tl.constexpr,
    T: tl.constexpr, D: tl.constexpr, M: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    AREA: tl.constexpr = WINDOW * WINDOW
    C: tl.constexpr = HEADS * DIM
    PARTS: tl.constexpr = (AREA + M - 1) // M
    head = tl.program_id(0) // PARTS % HEADS
    first = tl.program_id(0) // PARTS // HEADS * EACH
    m, t, d = tl.program_id(0) % PARTS * M + tl.arange(0, M), tl.arange(0, T), tl.arange(0, D)
    channel = head * DIM
    bias = tl.load(bias_ptr + (head * AREA + m[:, None]) * T + t[None, :], mask=(m < AREA)[:, None], other=0.0)
    bias = tl.where((t < AREA)[None, :], bias.to(tl.float32) * 1.4426950408889634, -float("inf"))
    for window in range(first, tl.minimum(first + EACH, count)):
        token, there, region = _place(window, m, H, W, ROWS, COLUMNS, WINDOW, SHIFT)
        seen, inside, regions = _place(window, t, H, W, ROWS, COLUMNS, WINDOW, SHIFT)
        of_queries = qkv_ptr + token[:, None] * (3 * C) + channel
        of_keys = qkv_ptr + seen[:, None] * (3 * C) + channel + C
        q = _values(of_queries, fill_ptr + channel, d, there, m < AREA, DIM, FILL)
        k = _values(of_keys, fill_ptr + channel + C, d, inside, t < AREA, DIM, FILL)
        v = _values(of_keys + C, fill_ptr + channel + 2 * C, d, inside, t < AREA, DIM, FILL)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale + bias
        # cells that were apart before the shift are in windows at the far edges alone
        if SHIFT:  # noqa: SIM102 - known when it is compiled, the other not
            if (window // COLUMNS % ROWS == ROWS - 1) | (window % COLUMNS == COLUMNS - 1):
                scores += tl.where(region[:, None] != regions[None, :], -100.0 * 1.4426950408889634, 0.0)
        # Triton's reductions are tensors here; their types say more
        weights = tl.exp2(scores - tl.max(scores, 1)[:, None])  # pyright: ignore[reportCallIssue, reportArgumentType]
        total = tl.sum(weights, 1)
        context = tl.dot(weights.to(v.dtype), v, input_precision="ieee") / total[:, None]  # pyright: ignore
        to = out_ptr + token[:, None] * C + channel + d[None, :]
        tl.store(to, context.to(out_ptr.dtype.element_ty), mask=there[:, None] & (d < DIM)[None, :])


def padded_area(window: int) -> int:
    """Cells of a window as the kernel takes them: a power of two."""
    return max(16, triton.next_power_of_2(window**2))


def window_attention(qkv: Tensor, fill: Tensor | None, bias: Tensor, window: int, shift: int) -> Tensor:
    """Maps qkv [images, H, W, 3 C], of padding `fill` [3 C], bias [heads, window², padded_area] -> [images, H, W, C]"""
    images, height, width, channels = qkv.shape
    heads, channels = len(bias), channels // 3
    rows, columns = -(-height // window), -(-width // window)
    assert qkv.is_contiguous() and bias.is_contiguous() and bias.shape[1:] == (window**2, padded_area(window))
    out = qkv.new_empty(images, height, width, channels)
    area, dim, count = padded_area(window), channels // heads, images * rows * columns
    is_padded, query_rows = (rows * window, columns * window) != (height, width), min(area, QUERY_ROWS)
    programs = heads * triton.cdiv(window**2, query_rows)
    each = _windows_each(count * programs, qkv.device)
    _window_attention[(triton.cdiv(count, each) * programs,)](
        qkv, bias if fill is None else fill, bias, out, count, height, width, rows, columns,
        product_scale(dim**-0.5, PLAIN),
        HEADS=heads, DIM=dim, WINDOW=window, SHIFT=shift, FILL=is_padded and fill is not None,
        T=area, D=max(16, triton.next_power_of_2(dim)), M=query_rows, EACH=each, num_warps=4,
    )  # fmt: skip
    return out


def _windows_each(programs: int, device: torch.device) -> int:
    """Returns how many windows a program has, which read their biases once: a power of two."""
    processors = num_processors(device) if device.type == "cuda" else 1
    share = programs // (processors * WAVES)
    return min(MOST_WINDOWS, 1 << max(share.bit_length() - 1, 0))


@jit
def _merge_norm(
    x_ptr, delta_ptr, weight_ptr, bias_ptr, out_ptr, count, H, W, eps,
    C: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    cell = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, WIDTH)
    columns, rows = (W + 1) // 2, (H + 1) // 2
    # of a cell of four the upper left, the lower left, the upper right, the lower right
    y = (cell // columns % rows * 2)[:, None] + (i // C % 2)[None, :]
    x = (cell % columns * 2)[:, None] + (i // (2 * C))[None, :]
    image = (cell // columns // rows)[:, None]
    at = ((image * H + y) * W + x) * C + (i % C)[None, :]
    mask = (cell < count)[:, None] & (i < 4 * C)[None, :]
    there = mask & (y < H) & (x < W)
    values = tl.load(x_ptr + at, mask=there, other=0.0).to(tl.float32)
    if ADD:
        values += tl.load(delta_ptr + at, mask=there, other=0.0).to(tl.float32)
        values = values.to(x_ptr.dtype.element_ty).to(tl.float32)  # as if the addition were an operation of its own
    values = tl.where(mask, values - (tl.sum(values, 1) / (4 * C))[:, None], 0.0)  # pyright: ignore
    scale = tl.rsqrt(tl.sum(values * values, 1) / (4 * C) + eps)[:, None]  # pyright: ignore
    weight = tl.load(weight_ptr + i, mask=i < 4 * C, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + i, mask=i < 4 * C, other=0.0).to(tl.float32)
    normal = values * scale * weight[None, :] + bias[None, :]
    to = out_ptr + cell[:, None] * (4 * C) + i[None, :]
    tl.store(to, normal.to(out_ptr.dtype.element_ty), mask=mask)


def merge_norm(x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Returns the layer norms [images, ceil(rows / 2), ceil(columns / 2), 4 C] of cells of 2 x 2 of the sum of x and
    delta, if there is one, [images, rows, columns, C]; those beyond an odd side are zeros."""
    images, height, width, channels = x.shape
    assert x.is_contiguous() and (delta is None or (delta.is_contiguous() and delta.shape == x.shape))
    shape = images, -(-height // 2), -(-width // 2), 4 * channels
    out, count, padded = x.new_empty(shape), shape[0] * shape[1] * shape[2], triton.next_power_of_2(4 * channels)
    each = max(1, MERGED_VALUES // padded)
    _merge_norm[(triton.cdiv(count, each),)](
        x, x if delta is None else delta, weight, bias, out, count, height, width, eps,
        C=channels, ROWS=each, WIDTH=padded, ADD=delta is not None, num_warps=4,
    )  # fmt: skip
    return out
