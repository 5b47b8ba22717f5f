"""Rows of zeros behind a weight's own, in its memory alone: for results that are no whole 16 bytes the library has slow
products of 16 bits only (GPT-2's 50,257 tokens: 84 µs on an H200, which reads such a weight in 24)."""

from __future__ import annotations

from torch import Tensor

VECTOR = 8  # values of 16 bits in 16 bytes


def padded(values: Tensor) -> Tensor:
    """Returns a copy of values [N, ...] whose memory goes on with zeros, up to a whole number of vectors."""
    memory = values.new_zeros(_whole(len(values)), *values.shape[1:])
    memory[: len(values)] = values
    return memory[: len(values)]


def with_padding(values: Tensor) -> Tensor:
    """Returns values [N, ...] and the zeros that `padded` has put behind them; others are returned as they are."""
    if (rows := _whole(len(values))) == len(values):
        return values
    end = (values.storage_offset() + rows * values.stride(0)) * values.element_size()
    if end != values.untyped_storage().nbytes():  # nothing else's memory ends there
        return values
    return values.as_strided((rows, *values.shape[1:]), values.stride())


def _whole(rows: int) -> int:
    return -(-rows // VECTOR) * VECTOR
