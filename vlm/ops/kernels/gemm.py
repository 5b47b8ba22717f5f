"""The product of several rows with a weight, and the activation behind it, on GPUs of compute capability 9.0: gemm.cu.

The library's products begin when the kernel ahead of them has ended, and Triton's request nothing before their rows are
there; of narrow weights both leave processors idle. Within `norms_ahead.NormsAhead` a product that a norm adds to a
residual stream waits for the norm, and this for the product behind it (product_norms.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.kernels import nvrtc
from vlm.ops.kernels.device import num_processors
from vlm.ops.kernels.gemv import ACTIVATIONS, TYPES
from vlm.ops.kernels.norms_ahead import NormsAhead, Product, is_aligned
from vlm.ops.kernels.nvrtc import LINE
from vlm.ops.kernels.product_norms import TILE, Link, ahead_arguments, behind_arguments, between, may_be_followed

WARPS = 5  # as in gemm.cu: of a program
ROWS = (8, 16, 32, 64, 128)  # of a program
LARGEST_CLUSTER, CLUSTERED = 4, 0.75  # and the part of the processors of which clusters that large are made
SHORT, LONG = 2, 8  # lines of a program, at least: of few rows, and of many, whose sums take longer to merge
FEW_ROWS, FEW_LINES = 32, 8  # of a program whose weights others read again
MEMORY, EXTRAS = 227 * 1024, 2560  # bytes of a processor, and of a program beside its stages
MOST_PROGRAMS = 4  # of a processor
MOST_ROWS, MANY_ROWS = 128, 64
MOST_BYTES = 32 * 1024**2  # of a weight that meets MANY_ROWS: of larger ones the library is as fast
VECTOR = 4  # results that are stored at once
INT8, E4M3, FLOAT16, BFLOAT16 = range(4)
ITEM_BYTES = {INT8: 1, E4M3: 1, FLOAT16: 2, BFLOAT16: 2}
MOST_STAGES = {INT8: 8, E4M3: 8, FLOAT16: 16, BFLOAT16: 16}  # of a program: more are on their way before the rows, but
# leave the kernels beside it less room
KINDS = {torch.int8: INT8, torch.float8_e4m3fn: E4M3, torch.float16: FLOAT16, torch.bfloat16: BFLOAT16}


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for, and how programs share its results."""

    kind: int
    rows: int
    inputs: int
    outputs: int
    gated: bool
    splits: int
    stages: int
    normed: bool = False  # the rows are an RMS norm's

    @property
    def tiles(self) -> int:
        return -(-self.outputs // TILE)

    @property
    def box_rows(self) -> int:
        """Rows of the weight that are copied at once: where they are gated, half a tile's."""
        return TILE // 2 if self.gated else TILE

    @property
    def shared(self) -> int:
        """Bytes of shared memory: stages that begin where 1,024 divides the address, and barriers; sums take the place
        of the stages, or lie beside them where other programs send some."""
        ring, sums = self.stages * LINE * (TILE + self.rows), _sums(self.rows)
        together = ring + sums if self.splits > 1 else max(ring, sums)
        return 1024 + together + 16 * self.stages + 8 + _norm_bytes(self.rows, self.normed)


@functools.cache
def is_there(device: torch.device) -> bool:
    """Tells whether the kernel runs on a device: its products are those of compute capability 9.0 alone."""
    return nvrtc.copies_boxes(device) and torch.cuda.get_device_capability(device) == (9, 0)


def fits(x: Tensor, weight: Tensor, activation: Activation | None = None, *scales: Tensor) -> bool:
    """Tells whether `linear` takes these rows and weight."""
    if not is_there(x.device):
        return False
    rows, row_bytes = len(x), x.shape[1] * x.element_size()
    if rows > MOST_ROWS or (rows > MANY_ROWS and len(weight) * row_bytes > MOST_BYTES):
        return False
    if len(weight) > TILE * MOST_PROGRAMS * num_processors(x.device):
        return False
    gated = activation is not None and activation.gated
    whole = row_bytes % LINE == 0 and len(weight) % (2 * VECTOR if gated else VECTOR) == 0
    return whole and x.dtype == weight.dtype and x.dtype in KINDS and all(map(is_aligned, (x, weight, *scales)))


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
    activation: Activation | None = None,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Returns the activation of x weightᵀ + bias [R, N], for what `fits` says yes to: x [R, K] and weight [N, K] of one
    type, of 8 bits with scales [R, 1] and [N, 1]."""
    width = len(weight) if activation is None else activation.width(len(weight))
    y = torch.empty((len(x), width), dtype=dtype, device=x.device)
    product = Product(x, weight, bias, activation, scales, y, launch)
    ahead = NormsAhead.current()
    norm = None if ahead is None else ahead.taken_norm(x)
    if norm is not None and (link := between(norm, product)):
        launch(link.ahead, ahead=link)
        launch(product, behind=link)
        return y
    if norm is not None:
        norm.launch()
    if ahead is not None and ahead.one_reader and may_be_followed(product):
        ahead.put(product)
    else:
        launch(product)
    return y


def launch(product: Product, *, behind: Link | None = None, ahead: Link | None = None) -> None:
    """Computes a product, with its part of a link's norm where it is the one `behind` or `ahead` of that."""
    x, weight = product.x if behind is None else behind.rows, product.weight
    y = product.row if ahead is None else ahead.rows
    bias, act = product.bias, product.activation
    shape = shape_of(
        KINDS[x.dtype], len(x), x.shape[1], len(weight), act, num_processors(x.device), normed=behind is not None
    )
    kernel = _kernel(
        shape, TYPES[y.dtype], 0 if act is None else ACTIVATIONS[act.name], None if bias is None else TYPES[bias.dtype],
        None if ahead is None else TYPES[ahead.norm.x.dtype], x.device,
    )  # fmt: skip
    x_scale, weight_scale = product.scales or (None, None)
    kernel.launch(
        (shape.splits, shape.tiles, -(-len(x) // shape.rows)), 32 * WARPS,
        nvrtc.tensor_map(weight, shape.box_rows, 1), nvrtc.tensor_map(x, shape.rows, 1),
        weight_scale, x_scale, bias, y, len(x), *behind_arguments(behind), *ahead_arguments(ahead),
        cluster=shape.splits,
    )  # fmt: skip


@functools.cache
def shape_of(
    kind: int,
    rows: int,
    inputs: int,
    outputs: int,
    activation: Activation | None,
    processors: int,
    normed: bool = False,
) -> Shape:
    """Returns how a product is shared out, as measured within layers of models from T5-small to LLaMA-7B, of 4 to 128
    rows, on an H100 and an H200."""
    padded = next((most for most in ROWS if rows <= most), ROWS[-1])
    tiles, lines, tile = -(-outputs // TILE), inputs * ITEM_BYTES[kind] // LINE, padded
    splits = _num_splits(tiles, lines // (SHORT if padded < FEW_ROWS else LONG), processors)
    if padded == MOST_ROWS or lines <= FEW_LINES:
        tile = _tile_rows(padded, splits * tiles, processors // 2)
    programs = splits * tiles * padded // tile
    share = min(MOST_PROGRAMS, -(-programs // processors))  # of a processor
    sums = (_sums(tile) if splits > 1 else 0) + _norm_bytes(tile, normed)
    room = (MEMORY // share - EXTRAS - sums) // (LINE * (TILE + tile))
    stages = min(MOST_STAGES[kind], -(-lines // splits), room)
    return Shape(kind, tile, inputs, outputs, activation is not None and activation.gated, splits, stages, normed)


def _sums(rows: int) -> int:
    """Returns the bytes of a tile's sums."""
    return 4 * rows * (TILE + VECTOR)


def _norm_bytes(rows: int, normed: bool) -> int:
    """Returns the bytes of what a norm's rows are multiplied by."""
    return 4 * rows if normed else 0


def _num_splits(tiles: int, most: int, processors: int) -> int:
    """Returns how many programs share the inputs of a tile, at most so many: clusters of two on all processors, larger
    ones on some, as few groups of processors hold a whole number of those."""
    splits = 1
    while 2 * splits <= min(most, LARGEST_CLUSTER):
        if 2 * splits * tiles > processors * (CLUSTERED if splits > 1 else 1):
            break
        splits *= 2
    return splits


def _tile_rows(rows: int, programs: int, processors: int) -> int:
    """Returns the rows of a program: the fewer it has the sooner they are there, and the more often a weight is
    read."""
    while rows > FEW_ROWS and 2 * programs <= processors:
        rows, programs = rows // 2, 2 * programs
    return rows


@functools.cache
def _kernel(
    shape: Shape, y: int, act: int, bias: int | None, stream: int | None, device: torch.device
) -> nvrtc.CudaKernel:
    return nvrtc.CudaKernel("gemm.cu", "gemm", constants(shape, y, act, bias, stream), shape.shared)


def constants(shape: Shape, y: int, act: int, bias: int | None, stream: int | None = None) -> dict[str, int]:
    """Returns what a kernel is compiled with: the type of results, an activation, the type of a bias, if there is one,
    and that of the residual stream, if a norm follows."""
    return {
        "KIND": shape.kind, "Y_TYPE": y, "ACT": act, "GATED": int(shape.gated), "BIAS": int(bias is not None),
        "BIAS_TYPE": bias or 0, "INPUTS": shape.inputs, "OUTPUTS": shape.outputs, "ROWS": shape.rows,
        "SPLITS": shape.splits, "STAGES": shape.stages, "NORM": int(shape.normed), "FOLLOWED": int(stream is not None),
        "STREAM": stream or 0,
    }  # fmt: skip
