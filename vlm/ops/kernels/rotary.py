"""A program a row and head: queries turned into a new tensor, keys turned into the cache, values moved there; or a
program for several: heads turned into a new tensor alone; and the angles that positions turn them by."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, wait_for_inputs
from vlm.ops.kernels.heads import FEW, heads_each
from vlm.ops.kernels.jit import jit
from vlm.ops.kernels.kv_write import kv_write, store_quantized
from vlm.ops.kernels.paged_kv import kernel_scales, scale_stride
from vlm.ops.layouts.paged_kv import MOST, PagedKV


@jit
def turned(x_ptr, angles_ptr, i, D: tl.constexpr, HALF: tl.constexpr):
    """Returns one head's values, the first 2 · HALF of them turned."""
    inside = i < 2 * HALF
    first = i < HALF
    x = tl.load(x_ptr + i, mask=i < D, other=0.0).to(tl.float32)
    other = tl.load(x_ptr + tl.where(first, i + HALF, i - HALF), mask=inside, other=0.0).to(tl.float32)
    at = tl.where(first, i, i - HALF)
    cos = tl.load(angles_ptr + at, mask=inside, other=1.0)
    sin = tl.load(angles_ptr + HALF + at, mask=inside, other=0.0)
    return x * cos + tl.where(first, -other, other) * sin


@dependent
def _rotary(
    q_ptr, k_ptr, v_ptr, angles_ptr, out_ptr, keys_ptr, values_ptr, key_scales_ptr, value_scales_ptr,
    tables_ptr, slots_ptr, positions_ptr, q_row, k_row, v_row, block_stride, head_stride, scale_stride, table_stride,
    H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, WIDTH)
    angles = angles_ptr + row * 2 * HALF
    if head < H:
        x = turned(q_ptr + row * q_row + head * D, angles, i, D, HALF)
        tl.store(out_ptr + (row * H + head) * D + i, x.to(out_ptr.dtype.element_ty), mask=i < D)
    else:
        head -= H
        position = tl.load(positions_ptr + row)
        block = tl.load(tables_ptr + tl.load(slots_ptr + row) * table_stride + position // BLOCK).to(tl.int64)
        to = block * block_stride + head * head_stride + (position % BLOCK) * D
        x = turned(k_ptr + row * k_row + head * D, angles, i, D, HALF)
        v = tl.load(v_ptr + row * v_row + head * D + i, mask=i < D, other=0.0)
        if MOST > 0:
            at = block * scale_stride + head * BLOCK + position % BLOCK
            x = x.to(k_ptr.dtype.element_ty).to(tl.float32)  # as if turning were an operation of its own
            store_quantized(x, i, keys_ptr + to, key_scales_ptr + at, D, MOST)
            store_quantized(v.to(tl.float32), i, values_ptr + to, value_scales_ptr + at, D, MOST)
        else:
            tl.store(keys_ptr + to + i, x.to(keys_ptr.dtype.element_ty), mask=i < D)
            tl.store(values_ptr + to + i, v, mask=i < D)


@jit
def _rotate(
    x_ptr, angles_ptr, out_ptr, x_row, count, H: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr,
    WIDTH: tl.constexpr, REST: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * EACH + tl.arange(0, EACH)
    row, there, i = at // H, (at < count)[:, None], tl.arange(0, WIDTH)
    mask = there & (i < HALF)[None, :]
    x_ptr += (row * x_row + at % H * D)[:, None]
    out_ptr += (at * D)[:, None]
    angles_ptr += (row * 2 * HALF)[:, None] + i[None, :]
    first = tl.load(x_ptr + i[None, :], mask=mask, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + HALF + i[None, :], mask=mask, other=0.0).to(tl.float32)
    cos, sin = tl.load(angles_ptr, mask=mask, other=1.0), tl.load(angles_ptr + HALF, mask=mask, other=0.0)
    tl.store(out_ptr + i[None, :], (first * cos - second * sin).to(out_ptr.dtype.element_ty), mask=mask)
    tl.store(out_ptr + HALF + i[None, :], (second * cos + first * sin).to(out_ptr.dtype.element_ty), mask=mask)
    if 2 * HALF < D:
        rest = 2 * HALF + tl.arange(0, REST)
        mask = there & (rest < D)[None, :]
        tl.store(out_ptr + rest[None, :], tl.load(x_ptr + rest[None, :], mask=mask), mask=mask)


@dependent
def _angles(
    positions_ptr, frequencies_ptr, axes_ptr, out_ptr, R, scale,
    HALF: tl.constexpr, AXES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    # the next kernel does not start before this one ends: attention reads angles before it waits
    wait_for_inputs()
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    mask = i < HALF
    axis = tl.load(axes_ptr + i, mask=mask, other=0) if AXES else 0
    position = tl.load(positions_ptr + axis * R + row).to(tl.float32)
    angle = position * tl.load(frequencies_ptr + i, mask=mask, other=0.0)
    tl.store(out_ptr + row * 2 * HALF + i, tl.cos(angle) * scale, mask=mask)
    tl.store(out_ptr + row * 2 * HALF + HALF + i, tl.sin(angle) * scale, mask=mask)


def angles(positions: Tensor, frequencies: Tensor, axes: Tensor, scale: float) -> Tensor:
    """Returns what the operation `rotary_angles` says."""
    rows, half = positions.shape[-1], len(frequencies)
    positions = positions.contiguous()
    out = torch.empty((rows, 2, half), dtype=torch.float32, device=positions.device)
    _angles[(rows,)](
        positions, frequencies, axes if len(axes) else positions, out, rows, scale,
        HALF=half, AXES=len(axes) > 0, WIDTH=triton.next_power_of_2(half), num_warps=1,
    )  # fmt: skip
    return out


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    rows, heads, dim = x.shape
    assert x.stride(1) == dim and x.stride(2) == 1, "heads of a row must be contiguous"
    out = torch.empty((rows, heads, dim), dtype=x.dtype, device=x.device)
    half, count = angles.shape[2], rows * heads
    each, warps = heads_each(count)
    _rotate[(triton.cdiv(count, each),)](
        x, angles.contiguous(), out, x.stride(0), count, H=heads, D=dim, HALF=half, EACH=each, num_warps=warps,
        WIDTH=triton.next_power_of_2(half), REST=triton.next_power_of_2(max(1, dim - 2 * half)),
    )  # fmt: skip
    return out


def rotary_kv_write(
    q: Tensor, k: Tensor, v: Tensor, angles: Tensor, kv: PagedKV, tables: Tensor, slots: Tensor, positions: Tensor
) -> Tensor:
    rows, heads, dim = q.shape
    assert all(x.stride(1) == dim and x.stride(2) == 1 for x in (q, k, v)), "heads of a row must be contiguous"
    assert angles.is_contiguous()
    if rows * heads > FEW:  # by programs that have several heads each
        kv_write(rotate(k, angles), v, kv, tables, slots, positions)
        return rotate(q, angles)
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    _rotary[(rows, heads + k.shape[1])](
        q, k, v, angles, out, kv.keys, kv.values, *kernel_scales(kv), tables, slots, positions,
        q.stride(0), k.stride(0), v.stride(0), kv.keys.stride(0), kv.keys.stride(1), scale_stride(kv), tables.stride(0),
        H=heads, D=dim, HALF=angles.shape[2], BLOCK=kv.block_size, WIDTH=triton.next_power_of_2(dim),
        MOST=MOST[kv.keys.dtype] if kv.is_quantized else 0.0, num_warps=1,
    )  # fmt: skip
    return out
