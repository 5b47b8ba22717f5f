"""The product of one row, and the norm ahead of it, on GPUs that copy boxes of memory by themselves (compute capability
9.0 and up): gemv.cu.

Within `norms_ahead.NormsAhead` a norm of one row waits for the product that takes its row: both are one kernel then. On
an H200 a layer of LLaMA-7B takes 40 µs with 4 bits and 58 with 8, attention over 664 tokens included. What was slower:
one kernel for all products between two attentions, whose programs handed each other the results while the next weights
arrived (they waited for each other longer than launches take); programs so small that those of the next kernel begin
beside them (where two of one kernel meet on a processor, the others wait for it); and going through a program with
zeros first, while it waits for the row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.kernels import nvrtc
from vlm.ops.kernels.device import device_properties, num_processors
from vlm.ops.kernels.norms_ahead import NO_NORM, VECTOR, X_TYPES, Norm, NormsAhead, is_aligned
from vlm.ops.kernels.nvrtc import LINE

TILE_ROWS, BOX_ROWS, PIECE = 16, 8, 64  # as in gemv.cu: rows, and bytes of a row
MOST_VECTORS, MOST_RESULTS = 8, 4  # of a thread
# bytes of the weight that there is room for: of 8 warps' programs two share a processor, beside those of 16 attention's
# have room (attend.py), which read ahead as well
RINGS = {8: 96 * 1024, 16: 112 * 1024}
# bytes of it on their way to a processor, by the warps of a program, and of one that has room for all of it: all else
# waits behind them
IN_FLIGHT, OF_SMALL = {8: 64 * 1024, 16: 48 * 1024}, 32 * 1024
LARGE = 48 * 1024  # bytes of the weight beyond which a program of several tiles has twice the warps
# bytes of a weight of 16 bits without gates: larger ones are heads', of which linear.py's kernel reads more a second
MOST_DENSE = 192 * 1024**2
TYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
INT8, E4M3, INT4, DENSE = range(4)
KINDS = {torch.int8: INT8, torch.float8_e4m3fn: E4M3, torch.uint8: INT4} | dict.fromkeys(X_TYPES, DENSE)
PIECE_INPUTS = {INT8: 64, E4M3: 64, INT4: 128, DENSE: 32}
ACTIVATIONS = {"": 0, "gelu": 1, "gelu_new": 2, "relu": 3, "silu": 4, "quick_gelu": 5}
FEWEST_WARPS = 8


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for, and how so many processors share its results."""

    kind: int
    inputs: int
    outputs: int
    groups: int
    gated: bool
    zero: bool
    processors: int

    @property
    def per_tile(self) -> int:
        """Results of a tile: where they are gated two rows make one."""
        return BOX_ROWS if self.gated else TILE_ROWS

    @property
    def tiles(self) -> int:
        return -(-self.outputs // TILE_ROWS)

    @property
    def programs(self) -> int:
        return min(self.tiles, self.processors)

    @property
    def most_tiles(self) -> int:
        """Tiles of the program that has most."""
        return -(-self.tiles // self.programs)

    @property
    def num_pieces(self) -> int:
        """Pieces of a row of the weight."""
        return self.inputs // PIECE_INPUTS[self.kind]

    @property
    def warps(self) -> int:
        is_large = self.most_tiles > 1 and self.most_tiles * TILE_ROWS * self.num_pieces * PIECE > LARGE
        return 2 * FEWEST_WARPS if is_large and self.num_pieces > FEWEST_WARPS else FEWEST_WARPS

    @property
    def pieces(self) -> int:
        """Those that a warp has of a stage."""
        return 2 if self.warps == FEWEST_WARPS < self.num_pieces and self.num_pieces % 2 == 0 else 1

    @property
    def _row(self) -> int:
        """Bytes of a row in a stage."""
        return self.warps * self.pieces * PIECE

    @property
    def _chunks(self) -> int:
        """Stages of a tile."""
        return -(-self.num_pieces * PIECE // self._row)

    @property
    def stages(self) -> int:
        """Those that there is room for, however few are needed: of smaller programs some processors would have two of a
        kernel, and others none."""
        return RINGS[self.warps] // (TILE_ROWS * self._row)

    @property
    def depth(self) -> int:
        """Stages on their way at once."""
        is_small = self.most_tiles * self._chunks <= self.stages
        return min(self.stages, (OF_SMALL if is_small else IN_FLIGHT[self.warps]) // (TILE_ROWS * self._row))

    @property
    def lines(self) -> int:
        """Lines of a row that are copied at once."""
        return self._row // LINE

    @property
    def shared(self) -> int:
        """Bytes of shared memory: stages and their barriers, scales and zero points, x, sums of warps, scratch, sums of
        x."""
        places = min(self.most_tiles, -(-(self.stages - 1) // self._chunks) + 1) if self.kind == INT4 else 0
        scales = places * TILE_ROWS * self.groups * (5 if self.zero else 4)
        sums = 4 * self.most_tiles * self.warps * TILE_ROWS + 8 * self.warps
        x = self.inputs * (4 if self.kind in (INT8, INT4) else 2)
        sums_of_x = 4 * (-(-self.num_pieces // 4) * 4) if self.zero else 0
        return self.stages * (TILE_ROWS * self._row + 16) + scales + x + sums + sums_of_x

    @property
    def fits(self) -> bool:
        """Tells whether boxes can be copied of a weight of these sizes, and a program has room for its results."""
        if self.outputs % TILE_ROWS and (self.gated or self.kind == INT4):
            return False
        if self.kind == DENSE and not self.gated and 2 * self.inputs * self.outputs > MOST_DENSE:
            return False
        whole_lines = self.inputs % PIECE_INPUTS[self.kind] == 0 and self.num_pieces * PIECE % LINE == 0
        whole_groups = self.num_pieces % self.groups == 0 and not (self.zero and self.groups % 2)
        narrow = self.inputs <= MOST_VECTORS * VECTOR * 32 * self.warps
        few = self.most_tiles * self.per_tile <= MOST_RESULTS * 32 * self.warps
        return whole_lines and whole_groups and narrow and few


def fits(x: Tensor, weight: Tensor, scale: Tensor | None, zero: Tensor | None, activation: Activation | None) -> bool:
    """Tells whether `linear` takes this row and weight."""
    if len(x) != 1 or x.dtype not in X_TYPES or not nvrtc.copies_boxes(x.device):
        return False
    if scale is None and weight.dtype != x.dtype:
        return False
    shape = _shape(x, weight, scale, zero, activation)
    room = device_properties(x.device.index).shared_memory_per_block_optin
    copied = (x, weight) if scale is None else (x, weight, scale)
    return shape.fits and shape.shared <= room and all(map(is_aligned, copied))


def linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor | None,
    zero: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    activation: Activation | None = None,
) -> Tensor:
    """Returns the activation of x Wᵀ + bias [1, N], x [1, K], for what `fits` says yes to: weight [N, K] of 8 bits with
    scale [N, 1], or [N, K / 2] as vlm.ops.layouts.int4_packing.packed4 has it with scale and zero [N, groups], or in
    the type of x without a scale."""
    shape, width = _shape(x, weight, scale, zero, activation), len(weight)
    norm = None if (ahead := NormsAhead.current()) is None else ahead.taken_norm(x)
    y = x.new_empty((1, width if activation is None else activation.width(width)), dtype=dtype)
    act = 0 if activation is None else ACTIVATIONS[activation.name]
    kernel = _kernel(shape, TYPES[x.dtype], TYPES[dtype], act, bias is not None, _norm_types(norm), x.device)
    kernel.launch(
        (shape.programs, 1, 1), 32 * (shape.warps + 1), nvrtc.tensor_map(weight, BOX_ROWS, shape.lines),
        x if norm is None else norm.x, scale, zero, bias, y, *_norm_arguments(norm),
    )  # fmt: skip
    return y


def _shape(
    x: Tensor, weight: Tensor, scale: Tensor | None, zero: Tensor | None, activation: Activation | None
) -> Shape:
    gated = activation is not None and activation.gated
    groups = 1 if scale is None else scale.shape[1]
    return Shape(
        KINDS[weight.dtype], x.shape[1], len(weight), groups, gated, zero is not None, num_processors(x.device)
    )


def _norm_types(norm: Norm | None) -> tuple[int, int, int]:
    """Returns the kind of a norm, and the types of x and of delta, -1 where there is none."""
    if norm is None:
        return NO_NORM, 0, -1
    return norm.kind, TYPES[norm.x.dtype], -1 if norm.delta is None else TYPES[norm.delta.dtype]


def _norm_arguments(norm: Norm | None) -> tuple[Any, ...]:
    if norm is None:
        return None, None, None, None, None, 0.0
    return norm.delta, norm.gain, norm.shift, norm.stream, norm.row, norm.eps


@functools.cache
def _kernel(
    shape: Shape, x: int, y: int, act: int, bias: bool, norm: tuple[int, int, int], device: torch.device
) -> nvrtc.CudaKernel:
    return nvrtc.CudaKernel("gemv.cu", "gemv", constants(shape, x, y, act, bias, norm), shape.shared)


def constants(shape: Shape, x: int, y: int, act: int, bias: bool, norm: tuple[int, int, int]) -> dict[str, int]:
    """Returns what a kernel is compiled with: types, an activation, whether there is a bias, `norm` as _norm_types has
    it."""
    kind, stream, delta = norm
    return {
        "KIND": shape.kind, "X_TYPE": x, "Y_TYPE": y, "ACT": act, "GATED": int(shape.gated), "BIAS": int(bias),
        "ZERO": int(shape.zero), "INPUTS": shape.inputs, "OUTPUTS": shape.outputs, "GROUPS": shape.groups, "NORM": kind,
        "ADD": int(delta >= 0), "STREAM": stream, "DELTA": max(delta, 0), "PROGRAMS": shape.programs,
        "WARPS": shape.warps, "PIECES": shape.pieces, "STAGES": shape.stages, "DEPTH": shape.depth,
    }  # fmt: skip
