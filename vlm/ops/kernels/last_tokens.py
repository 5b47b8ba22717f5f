"""A program a row: what a decode step begins with, of its slot."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, wait_for_inputs
from vlm.ops.state.sequences import SequenceState


@dependent
def _last_tokens(slots_ptr, tokens_ptr, lengths_ptr, cross_ptr, out_ptr, width, R, CROSS: tl.constexpr):
    # what it writes is read before other kernels wait: none starts before this one has ended
    wait_for_inputs()
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    length = tl.load(lengths_ptr + slot)
    tl.store(out_ptr + row, tl.load(tokens_ptr + slot * width + length - 1))
    tl.store(out_ptr + R + row, length - 1)
    tl.store(out_ptr + 2 * R + row, length)
    if CROSS:
        tl.store(out_ptr + 3 * R + row, tl.load(cross_ptr + slot))


def last_tokens(
    state: SequenceState, slots: Tensor, cross_lengths: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Returns the fields of LastTokens."""
    rows, crosses = len(slots), cross_lengths is not None
    out = torch.empty((4, rows), dtype=torch.int32, device=slots.device)
    _last_tokens[(rows,)](
        slots, state.tokens, state.lengths, cross_lengths if crosses else slots, out, state.tokens.shape[1], rows,
        CROSS=crosses, num_warps=1,
    )  # fmt: skip
    return out[0], out[1], out[2], out[3] if crosses else None
