"""The product of one row with a weight of 8 or 4 bits, on GPUs that copy boxes of memory by themselves (compute
capability 9.0 and up): gemv.cu.

On an H200 the four products of a layer of LLaMA-7B take 41 µs with 4 bits and 56 with 8, by quantized_linear.py 55 and
61; a [1024, 1024] product 2 µs and 4. Weights of 16 bits come as fast by linear.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.kernels import nvrtc
from vlm.ops.kernels.device import device_properties

TILE_ROWS, BOX_ROWS, PIECE, LINE = 16, 8, 64, 128  # as in gemv.cu: rows, and bytes of a row
PER_PROCESSOR = 2  # programs: one multiplies while the other one ends and the next kernel's first one begins
X_TYPES = {torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16"}
Y_TYPES = X_TYPES | {torch.float32: "FLOAT32"}
KINDS = {torch.int8: "INT8", torch.float8_e4m3fn: "E4M3", torch.uint8: "INT4"}
INPUTS = {"INT8": 64, "E4M3": 64, "INT4": 128}  # of a piece
ACTIVATIONS = {"": "NO_ACT", "gelu": "GELU", "gelu_new": "GELU_NEW", "relu": "RELU", "silu": "SILU"}


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for, and how so many processors share its results."""

    kind: str
    inputs: int
    results: int
    gated: bool
    processors: int

    @property
    def per_tile(self) -> int:
        """Results of a tile: where they are gated two rows make one."""
        return BOX_ROWS if self.gated else TILE_ROWS

    @property
    def tiles(self) -> int:
        return max(1, self.results // self.per_tile)

    @property
    def programs(self) -> int:
        return min(self.tiles, PER_PROCESSOR * self.processors)

    @property
    def tiles_each(self) -> int:
        """Tiles of the program that has most."""
        return -(-self.tiles // self.programs)

    @property
    def row_bytes(self) -> int:
        return self.inputs // INPUTS[self.kind] * PIECE

    @property
    def warps(self) -> int:
        return 16 if self.row_bytes > 8 * PIECE else 8

    @property
    def stages(self) -> int:
        return 3 if self.kind == "INT4" else 4

    @property
    def shared(self) -> int:
        """Bytes of shared memory, in the kernel's order: stages, x, sums of warps, largest values and sums of x,
        barriers."""
        stages, sums = TILE_ROWS * self.warps * PIECE, 4 * self.tiles_each * self.warps * TILE_ROWS
        pieces = self.row_bytes // PIECE
        return self.stages * stages + 2 * self.inputs + sums + 4 * self.warps + 4 * (pieces + 3) + 16 * self.stages


def fits(x: Tensor, weight: Tensor, groups: int, activation: Activation | None) -> bool:
    """Tells whether `linear` takes this row, weight and number of groups of a row."""
    if len(x) != 1 or x.dtype not in X_TYPES or not _is_there(x.device):
        return False
    shape = _shape(x, weight, activation)
    whole_tiles = shape.results % shape.per_tile == 0
    whole_groups = shape.kind != "INT4" or shape.inputs // groups % INPUTS["INT4"] == 0
    aligned = shape.row_bytes % LINE == 0 and weight.data_ptr() % 16 == 0
    room = device_properties(x.device.index).shared_memory_per_block_optin
    fits_program = shape.tiles_each * shape.per_tile <= 32 * shape.warps and shape.shared <= room
    return whole_tiles and whole_groups and aligned and fits_program


def linear(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    bias: Tensor | None,
    dtype: torch.dtype,
    activation: Activation | None = None,
) -> Tensor:
    """Returns the activation of x Wᵀ + bias [1, N], x [1, K], for what `fits` says yes to: weight [N, K] of 8 bits with
    scale [N, 1], or [N, K / 2] as vlm.ops.int4_packing.packed4 has it with scale and zero [N, groups]."""
    assert x.is_contiguous() and weight.is_contiguous() and scale.is_contiguous()
    shape = _shape(x, weight, activation)
    y = torch.empty((1, shape.results), dtype=dtype, device=x.device)
    kernel = _kernel(
        shape, X_TYPES[x.dtype], Y_TYPES[dtype], "" if activation is None else activation.name,
        bias is not None, zero is not None, shape.inputs // scale.shape[1], x.device.index,
    )  # fmt: skip
    box = BOX_ROWS, shape.warps * PIECE // LINE
    nothing = weight
    kernel.launch(
        shape.programs, 32 * (shape.warps + 1), nvrtc.tensor_map(weight, LINE, *box), x, scale,
        nothing if zero is None else zero, nothing if bias is None else bias, y,
        len(weight), shape.inputs, *divmod(shape.tiles, shape.programs),
    )  # fmt: skip
    return y


def _shape(x: Tensor, weight: Tensor, activation: Activation | None) -> Shape:
    gated = activation is not None and activation.gated
    processors = device_properties(x.device.index).multi_processor_count
    return Shape(KINDS[weight.dtype], x.shape[1], len(weight) // (2 if gated else 1), gated, processors)


@functools.cache
def _kernel(
    shape: Shape, x: str, y: str, activation: str, bias: bool, zero: bool, group: int, device: int
) -> nvrtc.CudaKernel:
    constants = {
        "KIND": shape.kind, "X_TYPE": x, "Y_TYPE": y, "ACT": ACTIVATIONS[activation], "GATED": int(shape.gated),
        "BIAS": int(bias), "ZERO": int(zero), "GROUP": group, "WARPS": shape.warps, "STAGES": shape.stages,
    }  # fmt: skip
    return nvrtc.CudaKernel("gemv.cu", "gemv", constants, shape.shared)


@functools.cache
def _is_there(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0) and nvrtc.is_there()
