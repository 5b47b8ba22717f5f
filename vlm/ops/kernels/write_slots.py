"""A program a row of a tensor: it copies a slot's values to where they belong.

An admission tells some thirty tensors something. To launch a copy for each takes the host longer than a decode step.
"""

from __future__ import annotations

import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.jit import jit

FIELDS = 5  # of a tensor: its address; numbers a row has, and from one row to the next; first byte of the values; size
TILE = 256  # numbers


@jit
def _write_slots(address, tensors_ptr, slots_ptr, FIELDS: tl.constexpr, TILE: tl.constexpr):
    row, tensor = tl.program_id(0), tensors_ptr + tl.program_id(1) * FIELDS
    slot, start = tl.load(slots_ptr + row), tl.load(tensor)
    width, stride, first = tl.load(tensor + 1), tl.load(tensor + 2), tl.load(tensor + 3)
    size = tl.load(tensor + 4)  # bytes of a number: 1 or 4
    source, target = address + first + row * width * size, start + slot * stride * size
    for begin in range(0, width, TILE):
        i = begin + tl.arange(0, TILE)
        words, flags = (i < width) & (size == 4), (i < width) & (size == 1)
        word = tl.load(source.to(tl.pointer_type(tl.int32)) + i, mask=words)
        tl.store(target.to(tl.pointer_type(tl.int32)) + i, word, mask=words)
        flag = tl.load(source.to(tl.pointer_type(tl.int8)) + i, mask=flags)
        tl.store(target.to(tl.pointer_type(tl.int8)) + i, flag, mask=flags)


def write_slots(values: Tensor, tensors: Tensor, slots: Tensor) -> None:
    """Writes rows of `values`, bytes that begin at an address which 16 divides, into the slots [R] int64 of tensors
    [N, FIELDS] int64."""
    _write_slots[(len(slots), len(tensors))](values.data_ptr(), tensors, slots, FIELDS=FIELDS, TILE=TILE, num_warps=1)
