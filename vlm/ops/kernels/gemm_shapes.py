"""How a product of several rows is shared out among programs (gemm.cu), as measured within layers of models from
T5-small to LLaMA-7B, of 4 to 128 rows, on an H100 and an H200."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from vlm.ops.kernels.nvrtc import LINE
from vlm.ops.kernels.product_norms import TILE

GROUP_WARPS = 4  # as in gemm.cu: those that multiply TILE outputs
ROWS = (8, 16, 32, 64, 128)  # of a program
MANY_ROWS, FEW_ROWS, FEW_LINES = ROWS[-1], 32, 8  # and lines of a program whose weights others read again
# groups of warps of a program, and the programs that a processor may have then: the first that there is room for
GROUPS = {8: ((1, 4), (2, 3)), 32: ((1, 2), (3, 1), (1, 4), (2, 3)), MANY_ROWS: ((1, 1), (2, 1), (3, 1), (2, 2))}
LARGEST_CLUSTER, CLUSTERED = 4, 0.75  # and the part of the processors of which clusters that large are made
CLUSTERED_TWICE = 1.25  # the same of programs of few rows and many lines, two of which share a processor
SHORT, LONG = 2, 8  # lines of a program, at least: of few rows, and of many, whose sums take longer to merge
EVEN_LINES = 64  # of rows that are halved so that processors have about as much each
MOST_BYTES = 32 * 1024**2  # of a weight that meets many rows, in programs that do not run together
MEMORY, EXTRAS = 227 * 1024, 2560  # bytes of a processor, and of a program beside its stages
MOST_PROGRAMS = 4  # of a processor
VECTOR = 4  # results that are stored at once
INT8, E4M3, FLOAT16, BFLOAT16 = range(4)
HALVES = (FLOAT16, BFLOAT16)
ITEM_BYTES = {INT8: 1, E4M3: 1, FLOAT16: 2, BFLOAT16: 2}
MOST_STAGES = {INT8: 8, E4M3: 8, FLOAT16: 16, BFLOAT16: 16}  # of a program: more are on their way before the rows, but
# leave the kernels beside it less room


@dataclass(frozen=True)
class Shape:
    """What a kernel is compiled for, and how programs share its results."""

    kind: int
    rows: int
    inputs: int
    outputs: int
    gated: bool
    splits: int = 1
    stages: int = 1
    normed: bool = False  # the rows are an RMS norm's
    groups: int = 1  # of warps, which have TILE outputs each

    @property
    def lines(self) -> int:
        """Returns the stages of a row of inputs."""
        return self.inputs * ITEM_BYTES[self.kind] // LINE

    @property
    def tile(self) -> int:
        """Returns the rows of the weight that a program has."""
        return TILE * self.groups

    @property
    def tiles(self) -> int:
        return -(-self.outputs // self.tile)

    @property
    def threads(self) -> int:
        """Returns how many multiply, and those of a warp that copies."""
        return 32 * (GROUP_WARPS * self.groups + 1)

    @property
    def box_rows(self) -> int:
        """Returns the rows of the weight that are copied at once: where they are gated, half a tile's."""
        return self.tile // 2 if self.gated else self.tile

    @property
    def shared(self) -> int:
        """Returns the bytes of shared memory: stages that begin where 1,024 divides the address, and barriers; sums
        take the place of the stages, or lie beside them where other programs send some."""
        ring, sums = self.stages * LINE * (self.tile + self.rows), _sums(self.rows, self.tile)
        together = ring + sums if self.splits > 1 else max(ring, sums)
        return 1024 + together + 16 * self.stages + 8 + _norm_bytes(self.rows, normed=self.normed)


def suits(kind: int, rows: int, inputs: int, *, outputs: int, processors: int) -> bool:
    """Tells whether the kernel takes a product, and is no slower than what else computes it. Of a large weight that
    meets many rows, and of the largest ones of 8 bits, it is where all programs run together."""
    together = -(-outputs // TILE) <= MOST_PROGRAMS * processors
    if rows <= MANY_ROWS // 2:
        return together or kind in HALVES
    is_small = inputs * ITEM_BYTES[kind] * outputs <= MOST_BYTES
    return rows <= MANY_ROWS and together and (is_small or kind in HALVES)


@functools.cache
def shape_of(
    kind: int, rows: int, inputs: int, *, outputs: int, gated: bool, processors: int, normed: bool = False
) -> Shape:
    """Returns how a product is shared out."""
    padded = next((most for most in ROWS if rows <= most), ROWS[-1])
    grouped = kind in HALVES and not normed
    groups = _num_groups(-(-outputs // TILE), padded, processors) if grouped else 1
    shape = Shape(kind, padded, inputs, outputs=outputs, gated=gated, normed=normed, groups=groups)
    if groups == 1:
        splits = _num_splits(shape.tiles, shape.lines, rows=padded, processors=processors)
        shape = replace(shape, splits=splits)
    if padded == MANY_ROWS or shape.lines <= FEW_LINES:
        shape = replace(shape, rows=_program_rows(padded, shape.splits * shape.tiles, processors // 2))
    programs = shape.splits * shape.tiles * padded // shape.rows
    return replace(shape, stages=_num_stages(shape, programs, processors))


def _num_stages(shape: Shape, programs: int, processors: int) -> int:
    """Returns how many stages there is room for beside the other programs of a processor."""
    share = min(MOST_PROGRAMS, -(-programs // processors))
    if shape.splits == LARGEST_CLUSTER and programs > CLUSTERED * processors:
        share = max(share, 2)
    sums = (_sums(shape.rows, shape.tile) if shape.splits > 1 else 0) + _norm_bytes(shape.rows, normed=shape.normed)
    room = (MEMORY // share - EXTRAS - sums) // (LINE * (shape.tile + shape.rows))
    return min(MOST_STAGES[shape.kind], -(-shape.lines // shape.splits), room)


def _sums(rows: int, tile: int) -> int:
    """Returns the bytes of a tile's sums."""
    return 4 * rows * (tile + VECTOR)


def _norm_bytes(rows: int, *, normed: bool) -> int:
    """Returns the bytes of what a norm's rows are multiplied by."""
    return 4 * rows if normed else 0


def _num_groups(tiles: int, rows: int, processors: int) -> int:
    """Returns how many tiles are a program's, which copies its rows once for all of them."""
    ways = GROUPS[max(least for least in GROUPS if least <= rows)]
    return next((groups for groups, most in ways if -(-tiles // groups) <= most * processors), 1)


def _num_splits(tiles: int, lines: int, *, rows: int, processors: int) -> int:
    """Returns how many programs share the inputs of a tile: clusters of two on all processors, larger ones on some, as
    few groups of processors hold a whole number of those, and two where processors have a third less each, then."""
    if tiles > processors:
        halves, wholes = -(-2 * tiles // processors), -(-tiles // processors)
        return 2 if lines >= EVEN_LINES and halves < 2 * wholes else 1
    is_long = rows <= FEW_ROWS and lines >= LARGEST_CLUSTER * LONG
    clustered = CLUSTERED_TWICE if is_long else CLUSTERED
    splits, most = 1, min(LARGEST_CLUSTER, lines // (SHORT if rows < FEW_ROWS else LONG))
    while 2 * splits <= most and 2 * splits * tiles <= processors * (clustered if splits > 1 else 1):
        splits *= 2
    return splits


def _program_rows(rows: int, programs: int, processors: int) -> int:
    """Returns the rows of a program: the fewer it has the sooner they are there, and the more often a weight is
    read."""
    while rows > FEW_ROWS and 2 * programs <= processors:
        rows, programs = rows // 2, 2 * programs
    return rows
