"""Rows of heads out of memory, with no more masks than they need."""

from __future__ import annotations

import triton.language as tl

from vlm.ops.kernels.jit import jit


@jit
def load_heads(at, there, part, DIM: tl.constexpr, WIDTH: tl.constexpr, WHOLE: tl.constexpr):
    """Returns a part of rows of heads at these addresses [N, D], `part` [D] the numbers of their values, below WIDTH;
    those that are not there as zeros, unless all are (WHOLE)."""
    if WHOLE and WIDTH <= DIM:
        return tl.load(at)
    elif WHOLE:
        return tl.load(at, mask=(part < DIM)[None, :], other=0.0)
    else:
        return tl.load(at, mask=there[:, None] & (part < DIM)[None, :], other=0.0)
