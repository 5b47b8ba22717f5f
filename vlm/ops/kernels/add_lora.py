"""Low-rank products of rows that have different adapters (as in Punica, Chen et al., arXiv:2310.18547).

One kernel makes each row narrow by its own adapter's A, another one adds what B makes of that. A program has a tile of
rows, and of adapters that none of these rows has it reads nothing.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.lora_matrices import TILE, LoraMatrices

ROWS = 16  # a tile's: the fewest that tensor cores multiply
INPUTS = 128  # a step's


@dependent
def _shrink(
    x_ptr, a_ptr, ids_ptr, narrow_ptr, R, K, N, P, RANK, x_row,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, INPUTS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Sums over a share of the inputs, for rows that have one adapter: x Aᵀ [ROWS, WIDTH] of one part."""
    let_next_start()
    row, adapter = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    part, split = tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    is_own = tl.load(ids_ptr + row, mask=row < R, other=-1) == adapter
    has_own = tl.max(is_own.to(tl.int32)) > 0  # pyright: ignore[reportOperatorIssue]
    r, k = tl.arange(0, WIDTH), tl.arange(0, INPUTS)
    a_at = a_ptr + ((part * N + adapter) * RANK + r)[None, :].to(tl.int64) * K + k[:, None]
    share = tl.cdiv(tl.cdiv(K, SPLITS), INPUTS) * INPUTS
    first = split * share
    end = tl.where(has_own, tl.minimum(first + share, K), first)
    in_rank = (r < RANK)[None, :]
    # on its way while x is not there yet
    a = tl.load(a_at + first, mask=(first + k < end)[:, None] & in_rank, other=0.0)
    wait_for_inputs()
    if has_own:
        x_at = x_ptr + row[:, None].to(tl.int64) * x_row + k[None, :]
        acc = tl.zeros([ROWS, WIDTH], tl.float32)
        for start in range(first, end, INPUTS):
            x = tl.load(x_at + start, mask=is_own[:, None] & (start + k < end)[None, :], other=0.0)
            acc = tl.dot(x, a, acc, input_precision="ieee")
            following = start + INPUTS
            a = tl.load(a_at + following, mask=(following + k < end)[:, None] & in_rank, other=0.0)
        at = ((split * R + row) * P + part)[:, None].to(tl.int64) * RANK + r[None, :]
        tl.store(narrow_ptr + at, acc, mask=is_own[:, None] & (r < RANK)[None, :])


@dependent
def _expand(
    narrow_ptr, b_ptr, ids_ptr, tiles_ptr, y_ptr, R, N, P, RANK, y_row, b_width,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Adds to a tile of y [ROWS, TILE] what each row's adapter makes of its narrow row."""
    let_next_start()
    row, i = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, TILE)
    tile = tiles_ptr + tl.program_id(1) * 4
    part, b_begin, y_begin, width = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    ids = tl.load(ids_ptr + row, mask=row < R, other=-1)
    r, in_tile = tl.arange(0, WIDTH), i < width
    wait_for_inputs()
    added = tl.zeros([ROWS, TILE], tl.float32)
    for adapter in range(N):
        is_own = ids == adapter
        if tl.max(is_own.to(tl.int32)) > 0:  # pyright: ignore[reportOperatorIssue]
            mask = is_own[:, None] & (r < RANK)[None, :]
            narrow = tl.zeros([ROWS, WIDTH], tl.float32)
            for split in tl.static_range(SPLITS):  # pyright: ignore[reportGeneralTypeIssues]
                at = ((split * R + row) * P + part)[:, None].to(tl.int64) * RANK + r[None, :]
                narrow += tl.load(narrow_ptr + at, mask=mask, other=0.0)
            b_at = b_ptr + (adapter * RANK + r)[:, None].to(tl.int64) * b_width + b_begin + i[None, :]
            b = tl.load(b_at, mask=(r < RANK)[:, None] & in_tile[None, :], other=0.0)
            added = tl.dot(narrow.to(b.dtype), b, added, input_precision="ieee")
    at = y_ptr + row[:, None].to(tl.int64) * y_row + y_begin + i[None, :]
    mask = (ids >= 0)[:, None] & in_tile[None, :]
    y = tl.load(at, mask=mask, other=0.0).to(tl.float32) + added
    tl.store(at, y.to(y_ptr.dtype.element_ty), mask=mask)


@functools.cache
def _processors(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def num_splits(tiles: int, inputs: int, processors: int) -> int:
    """Returns how many programs share the inputs of a tile and part, where these are fewer than multiprocessors."""
    return triton.next_power_of_2(min(triton.cdiv(processors, tiles), triton.cdiv(inputs, 2 * INPUTS)))


def add_lora(y: Tensor, x: Tensor, adapter_ids: Tensor, matrices: LoraMatrices) -> None:
    """Does what the operation `add_lora` says."""
    parts, count, rank, inputs = matrices.a.shape
    rows, row_tiles = len(x), triton.cdiv(len(x), ROWS)
    assert x.stride(1) == y.stride(1) == 1 and matrices.a.is_contiguous() and matrices.b.is_contiguous()
    splits = num_splits(row_tiles * parts, inputs, _processors(y.device.index or 0))
    narrow = torch.empty((splits, rows, parts, rank), dtype=torch.float32, device=y.device)
    kind = {"ROWS": ROWS, "WIDTH": max(16, triton.next_power_of_2(rank)), "SPLITS": splits, "num_warps": 4}
    _shrink[(row_tiles, count, parts * splits)](
        x, matrices.a, adapter_ids, narrow, rows, inputs, count, parts, rank, x.stride(0), INPUTS=INPUTS, **kind
    )
    _expand[(row_tiles, len(matrices.tiles))](
        narrow, matrices.b, adapter_ids, matrices.tiles, y, rows, count, parts, rank, y.stride(0),
        matrices.b.shape[2], TILE=TILE, **kind,
    )  # fmt: skip
