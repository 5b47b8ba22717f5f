"""Products of rows and weights that are both of 8 bits, and the rounding of rows to them."""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.norms_ahead import NormsAhead
from vlm.ops.kernels.rounding import Rounding, constants, pointers, store_rounded

FEW = 64  # rows that are one side of a tile
FEW_ROUNDED = 256  # rows of which a GPU has two a processor
LIBRARY_ROWS = 128  # of more products of e4m3 are the library's


@dependent
def _rounded(
    x_ptr, values_ptr, scale_ptr, static_ptr, K,
    STATIC: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row, k = tl.program_id(0).to(tl.int64) + tl.arange(0, 1), tl.arange(0, WIDTH)
    at, mask = row[:, None] * K + k[None, :], (row >= 0)[:, None] & (k < K)[None, :]
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    store_rounded(x, at, mask, row, row >= 0, values_ptr, scale_ptr, static_ptr, STATIC, LEAST, MOST)


@dependent
def _product(
    x_ptr, x_scale_ptr, w_ptr, w_scale_ptr, b_ptr, y_ptr, R, N, K, y_row, y_column,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, BIAS: tl.constexpr,
    BIAS_OF_ROWS: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    m, n, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    x_at = x_ptr + m[:, None].to(tl.int64) * K + k[None, :]
    w_at = w_ptr + n[None, :].to(tl.int64) * K + k[:, None]
    whole: tl.constexpr = w_ptr.dtype.element_ty == tl.int8
    acc = tl.zeros([BM, BN], tl.int32 if whole else tl.float32)
    for start in range(0, K, BK):
        x_mask, w_mask = (m < R)[:, None], (n < N)[None, :]
        if not EVEN:
            x_mask, w_mask = x_mask & (start + k < K)[None, :], w_mask & (start + k < K)[:, None]
        x = tl.load(x_at + start, mask=x_mask, other=0.0)
        w = tl.load(w_at + start, mask=w_mask, other=0.0)
        acc = tl.dot(x, w, acc, out_dtype=tl.int32 if whole else tl.float32)
    x_scale, w_scale = tl.load(x_scale_ptr + m, mask=m < R, other=0.0), tl.load(w_scale_ptr + n, mask=n < N, other=0.0)
    y = acc.to(tl.float32) * x_scale[:, None] * w_scale[None, :]
    if BIAS and BIAS_OF_ROWS:
        y += tl.load(b_ptr + m, mask=m < R, other=0.0).to(tl.float32)[:, None]
    elif BIAS:
        y += tl.load(b_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    at = m[:, None].to(tl.int64) * y_row + n[None, :].to(tl.int64) * y_column
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=(m < R)[:, None] & (n < N)[None, :])


def rounded(
    rows: Tensor, dtype: torch.dtype, static_scale: Tensor | None, least: float, most: float
) -> tuple[Tensor, Tensor]:
    """Rounds as vlm.ops.products.w8a8.rounded says: by the kernel that makes the rows, where that waits."""
    count, inputs = rows.shape
    values = torch.empty((count, inputs), dtype=dtype, device=rows.device)
    scale = torch.empty((count, 1), dtype=torch.float32, device=rows.device)
    rounding = Rounding(values, scale, static_scale, float(least), float(most))
    if (ahead := NormsAhead.current()) is not None and (maker := ahead.taken(rows)) is not None:
        maker.launch(rounding)
        return values, scale
    width = triton.next_power_of_2(inputs)
    _rounded[(count,)](
        rows, *pointers(rounding, rows), inputs, **constants(rounding), WIDTH=width, num_warps=_warps(count, width),
    )  # fmt: skip
    return values, scale


def _warps(rows: int, width: int) -> int:
    """Returns the warps of a program that rounds one row, as measured on an H200: of few rows each is to be over
    soon."""
    return min(32, max(2, width // 256)) if rows <= FEW_ROUNDED else min(16, max(2, width // 1024))


def product(
    x: Tensor, scale: Tensor, weight: Tensor, weight_scale: Tensor, dtype: torch.dtype, bias: Tensor | None
) -> Tensor:
    """Returns what vlm.ops.products.w8a8.product says, without an activation."""
    (rows, inputs), outputs = x.shape, len(weight)
    assert x.is_contiguous() and weight.is_contiguous()
    if _is_for_library(x, weight, dtype, bias):
        options = {"bias": bias, "out_dtype": dtype, "use_fast_accum": True}
        try:
            return torch.ops.aten._scaled_mm(x, weight.t(), scale, weight_scale.t(), **options)
        except RuntimeError as error:  # it has no kernel of some sizes, and says so only then
            if "NOT_SUPPORTED" not in str(error):
                raise
    y = torch.empty((rows, outputs), dtype=dtype, device=x.device)
    bm, bn, bk, warps, stages = _tile(rows, outputs)
    left, right, strides = (x, scale), (weight, weight_scale), y.stride()
    if is_turned := rows <= FEW:  # the weight is the left side: few rows leave no part of a tile empty
        left, right, strides = right, left, strides[::-1]
    sizes = len(left[0]), len(right[0])
    _product[(triton.cdiv(sizes[0], bm), triton.cdiv(sizes[1], bn))](
        *left, *right, weight if bias is None else bias, y, *sizes, inputs, *strides,
        BM=bm, BN=bn, BK=bk, EVEN=inputs % bk == 0, BIAS=bias is not None, BIAS_OF_ROWS=is_turned,
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return y


def _is_for_library(x: Tensor, weight: Tensor, dtype: torch.dtype, bias: Tensor | None) -> bool:
    """Tells whether cuBLAS multiplies these rows of e4m3, and faster than the kernel here: on an H100 of more than 128
    rows, those of LLaMA-7B at 1.3 to 1.5 PFLOP/s. It has scales of rows and columns since CUDA 12.9, on compute
    capability 9.0; elsewhere torch has other kernels, of bfloat16 alone."""
    if not x.is_cuda or x.dtype != torch.float8_e4m3fn or len(x) <= LIBRARY_ROWS or _cuda() < (12, 9):
        return False
    if torch.cuda.get_device_capability(x.device) != (9, 0) or x.shape[1] % 16 or len(weight) % 16:
        return False
    return bias is None or bias.dtype == dtype != torch.float32


@functools.cache
def _cuda() -> tuple[int, ...]:
    """Returns the version of CUDA that torch was built for."""
    return tuple(map(int, (torch.version.cuda or "0").split(".")))


def _tile(rows: int, outputs: int) -> tuple[int, int, int, int, int]:
    """Returns (rows of the left side, of the right side, inputs of a step, warps, stages) of a program, as measured on
    an H200."""
    if rows > 128:
        return (128, 256, 128, 8, 3) if outputs > 8192 else (128, 128, 128, 8, 4)
    if rows > FEW:
        return (64, 32, 256, 4, 4) if outputs <= 8192 else (64, 128, 128, 4, 4)
    return 64, max(16, triton.next_power_of_2(rows)), 256, 4, 4 if outputs <= 8192 else 3
