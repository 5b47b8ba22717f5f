"""Low-rank products of rows that have different adapters (as in Punica, Chen et al., arXiv:2310.18547).

The matrices of all adapters lie behind each other, as one of N · rank columns. One kernel makes each row narrow by
those columns that are its own adapter's, another one adds what B makes of that. A program has a tile of rows and a
chunk of columns, of several adapters where they are narrow, and reads nothing of a chunk that none of its rows needs.
In a graph the first kernel is a branch beside the layer's own product, which leaves most multiprocessors idle.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.device import num_processors
from vlm.ops.kernels.norms_ahead import launch_waiting
from vlm.ops.layouts.lora_matrices import TILE, LoraMatrices

FEW, MANY = 16, 64  # rows of a tile: the fewest that tensor cores multiply; of prompts and encoders
PREFILL_ROWS = 1024  # from which on tiles are MANY
INPUTS = 128  # a step's
CHUNK = 64  # columns at most, of as many adapters as have room
STEP_CHUNK = 128  # of a step's second product, which has nothing to do while they come: all at once


@dependent
def _shrink(
    x_ptr, a_ptr, ids_ptr, narrow_ptr, R, K, P, RANK, COLUMNS, x_row,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, INPUTS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Sums x Aᵀ [ROWS, CHUNK] of one part over a share of the inputs, and keeps of each row its adapter's columns."""
    let_next_start()
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    part, split = tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    ids = tl.load(ids_ptr + row, mask=row < R, other=-1)
    is_own = (ids[:, None] == (column // RANK)[None, :]) & (column < COLUMNS)[None, :]
    is_needed = tl.max(is_own.to(tl.int32)) > 0  # pyright: ignore[reportOperatorIssue]
    k = tl.arange(0, INPUTS)
    a_at = a_ptr + (part * COLUMNS + column)[None, :].to(tl.int64) * K + k[:, None]
    share = tl.cdiv(tl.cdiv(K, SPLITS), INPUTS) * INPUTS
    first = split * share
    end = tl.where(is_needed, tl.minimum(first + share, K), first)
    is_there = (column < COLUMNS)[None, :]
    # on its way while x is not there yet
    a = tl.load(a_at + first, mask=(first + k < end)[:, None] & is_there, other=0.0)
    wait_for_inputs()
    if is_needed:
        x_at = x_ptr + row[:, None].to(tl.int64) * x_row + k[None, :]
        acc = tl.zeros([ROWS, CHUNK], tl.float32)
        for start in range(first, end, INPUTS):
            x = tl.load(x_at + start, mask=(row < R)[:, None] & (start + k < end)[None, :], other=0.0)
            acc = tl.dot(x, a, acc, input_precision="ieee")
            following = start + INPUTS
            a = tl.load(a_at + following, mask=(following + k < end)[:, None] & is_there, other=0.0)
        at = ((split * R + row) * P + part)[:, None].to(tl.int64) * RANK + (column % RANK)[None, :]
        tl.store(narrow_ptr + at, acc, mask=is_own)


@dependent
def _expand(
    narrow_ptr, b_ptr, ids_ptr, tiles_ptr, y_ptr, R, P, RANK, y_row, b_width,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, ALIGNMENT: tl.constexpr,
):  # fmt: skip
    """Adds to a tile of y [ROWS, TILE] what each row's adapter makes of its narrow row."""
    let_next_start()
    row, i = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, TILE)
    tile = tiles_ptr + tl.program_id(1) * 4
    part = tl.load(tile)
    b_begin, y_begin = tl.multiple_of(tl.load(tile + 1), ALIGNMENT), tl.multiple_of(tl.load(tile + 2), ALIGNMENT)
    width = tl.multiple_of(tl.load(tile + 3), ALIGNMENT)
    ids = tl.load(ids_ptr + row, mask=row < R, other=-1)
    in_tile = i < width
    # from the first adapter of these rows to the last one
    end = (tl.max(ids) + 1) * RANK  # pyright: ignore[reportOperatorIssue]
    first = tl.min(tl.where(ids < 0, 1 << 20, ids)) * RANK // CHUNK * CHUNK  # pyright: ignore[reportOperatorIssue]
    c = tl.arange(0, CHUNK)
    b_at = b_ptr + (first + c)[:, None].to(tl.int64) * b_width + b_begin + i[None, :]
    # on its way while the narrow rows are not there yet
    b = tl.load(b_at, mask=(first + c < end)[:, None] & in_tile[None, :], other=0.0)
    wait_for_inputs()
    at = y_ptr + row[:, None].to(tl.int64) * y_row + y_begin + i[None, :]
    mask = (ids >= 0)[:, None] & in_tile[None, :]
    y = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    added = tl.zeros([ROWS, TILE], tl.float32)
    for start in range(first, end, CHUNK):
        column = start + c
        is_own = ids[:, None] == (column // RANK)[None, :]
        narrow = tl.zeros([ROWS, CHUNK], tl.float32)
        for split in tl.static_range(SPLITS):  # pyright: ignore[reportGeneralTypeIssues]
            narrow_at = (((split * R + row) * P + part) * RANK)[:, None] + (column % RANK)[None, :]
            narrow += tl.load(narrow_ptr + narrow_at, mask=is_own, other=0.0)
        added = tl.dot(narrow.to(b.dtype), b, added, input_precision="ieee")
        b_at += CHUNK * b_width
        b = tl.load(b_at, mask=(column + CHUNK < end)[:, None] & in_tile[None, :], other=0.0)
    tl.store(at, (y + added).to(y_ptr.dtype.element_ty), mask=mask)


def num_splits(tiles: int, inputs: int, processors: int) -> int:
    """Returns how many programs share the inputs of a tile and part, where these are fewer than multiprocessors."""
    return triton.next_power_of_2(min(triton.cdiv(processors, tiles), triton.cdiv(inputs, 2 * INPUTS)))


@functools.cache
def _side_stream(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)


@contextlib.contextmanager
def _beside(device: torch.device) -> Iterator[Callable[[], object]]:
    """Launches in a graph what is launched within as a branch of its own; what it gives joins it again. Elsewhere it is
    launched as everything is: events would take the host longer than they save."""
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        yield lambda: None
        return
    launch_waiting()  # where the product reads it as well
    current, side = torch.cuda.current_stream(), _side_stream(device.index or 0)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        yield lambda: current.wait_stream(side)


def add_lora(product: Callable[[Tensor], Tensor], x: Tensor, adapter_ids: Tensor, matrices: LoraMatrices) -> Tensor:
    """Does what the operation `add_lora` says."""
    parts, count, rank, inputs = matrices.a.shape
    rows, columns, is_prefill = len(x), count * rank, len(x) >= PREFILL_ROWS
    height = MANY if is_prefill else FEW
    row_tiles = triton.cdiv(rows, height)
    splits = num_splits(row_tiles * parts, inputs, num_processors(x.device))
    narrow = torch.empty((splits, rows, parts, rank), dtype=torch.float32, device=x.device)
    # of a prompt's rows, which have one adapter, a chunk of several would be computed for nothing
    chunk = lambda most: min(most, max(16, triton.next_power_of_2(rank if is_prefill else columns)))  # noqa: E731
    kind = {"ROWS": height, "SPLITS": splits, "num_warps": 4}
    assert x.stride(1) == 1 and matrices.a.is_contiguous() and matrices.b.is_contiguous()
    width = chunk(CHUNK)
    with _beside(x.device) as join:
        _shrink[(row_tiles, triton.cdiv(columns, width), parts * splits)](
            x, matrices.a, adapter_ids, narrow, rows, inputs, parts, rank, columns, x.stride(0),
            INPUTS=INPUTS, CHUNK=width, **kind,
        )  # fmt: skip
    y = product(x)
    assert y.stride(1) == 1
    join()
    _expand[(row_tiles, len(matrices.tiles))](
        narrow, matrices.b, adapter_ids, matrices.tiles, y, rows, parts, rank, y.stride(0), matrices.b.shape[2],
        TILE=TILE, ALIGNMENT=matrices.alignment, CHUNK=chunk(CHUNK if is_prefill else STEP_CHUNK), **kind,
    )  # fmt: skip
    return y
