"""Activations in one pass, in float32: by themselves, and as the end of products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.activation import Activation
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.jit import jit
from vlm.ops.kernels.norms_ahead import NormsAhead
from vlm.ops.kernels.rounding import Rounding, pointers, store_rounded
from vlm.ops.kernels.rounding import constants as of_rounding

TILE = 1024
FLAT, MANY = 4096, 1 << 20  # values of a program where rows do not matter, at most, and from how many on in all


@jit
def _tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@jit
def _gelu(x):
    """Returns max(x, 0) - a Phi(-a) of a = |x|, Phi the normal distribution, which is x Phi(x). The logarithm of
    Phi(-a) is close to a polynomial up to 5, beyond which a Phi(-a) is below 2e-6: fitted so that the result is off by
    3e-7 at most. The error function takes twice the instructions, more than there is time for as rows are read."""
    a = tl.minimum(tl.abs(x), 10.0)
    p = 4.06659638e-06 - 2.92732778e-07 * a
    p = 1.34799484e-05 + p * a
    p = -0.000727455481 + p * a
    p = 0.00803698413 + p * a
    p = -0.0533735417 + p * a
    p = -0.458817869 + p * a
    p = -1.15117145 + p * a
    p = -0.999998152 + p * a
    return 0.5 * (x + tl.abs(x)) - a * tl.exp2(p)


@jit
def act(x, NAME: tl.constexpr):
    """Returns the activation of float32; without a name x itself."""
    if NAME == "gelu":
        return _gelu(x)
    elif NAME == "gelu_new":
        return 0.5 * x * (1.0 + _tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
    elif NAME == "relu":
        return tl.maximum(x, 0.0)
    elif NAME == "silu":
        return x / (1.0 + tl.exp(-x))
    elif NAME == "quick_gelu":
        return x / (1.0 + tl.exp(-1.702 * x))
    else:
        return x


@jit
def outputs(r, ROWS: tl.constexpr, N, GATED: tl.constexpr):
    """Returns which of N outputs are the r-th ones of a program that has ROWS, and whether there are such: where they
    are gated half of them are of the gate's part, and then come those that they are multiplied with."""
    if GATED:
        half = tl.program_id(0) * (ROWS // 2) + r % (ROWS // 2)
        return (r // (ROWS // 2)) * (N // 2) + half, half < N // 2
    else:
        n = tl.program_id(0) * ROWS + r
        return n, n < N


@jit
def finished(y, NAME: tl.constexpr, GATED: tl.constexpr):
    """Returns the activation of outputs [ROWS, M] float32 as `outputs` has them, gated [ROWS / 2, M]."""
    if GATED:
        parts = tl.reshape(y, [2, y.shape[0] // 2, y.shape[1]])
        is_gate = (tl.arange(0, 2) == 0)[:, None, None]
        gate, up = tl.sum(tl.where(is_gate, parts, 0.0), 0), tl.sum(tl.where(is_gate, 0.0, parts), 0)
        return act(gate, NAME) * up
    else:
        return act(y, NAME)


@jit
def store(y, y_ptr, R, N, first_row=0):
    """Stores results [ROWS, M] of this program, columns as rows of y [R, N]."""
    n = tl.program_id(0) * y.shape[0] + tl.arange(0, y.shape[0])
    m = first_row + tl.arange(0, y.shape[1])
    at = m[None, :].to(tl.int64) * N + n[:, None]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=(n < N)[:, None] & (m < R)[None, :])


@dependent
def _activated(
    x_ptr, y_ptr, values_ptr, scale_ptr, static_ptr, F, NAME: tl.constexpr, GATED: tl.constexpr, TILE: tl.constexpr,
    ROUND: tl.constexpr, STATIC: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = (row >= 0)[:, None] & (i < F)[None, :]
    x = x_ptr + row[:, None] * F * (2 if GATED else 1) + i[None, :]
    y = act(tl.load(x, mask=mask, other=0.0).to(tl.float32), NAME)
    if GATED:
        y *= tl.load(x + F, mask=mask, other=0.0).to(tl.float32)
    at, y = row[:, None] * F + i[None, :], y.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + at, y, mask=mask)
    if ROUND:
        y = tl.where(mask, y.to(tl.float32), 0.0)
        store_rounded(y, at, mask, row, row >= 0, values_ptr, scale_ptr, static_ptr, STATIC, LEAST, MOST)


@dataclass(frozen=True)
class WaitingActivation:
    """Inputs and result of an activation that may wait: `row` [R, F] of x."""

    x: Tensor
    activation: Activation
    row: Tensor

    def launch(self, rounding: Rounding | None = None) -> None:
        """Computes it, and rounds its rows: a program has one whole then."""
        count, width = self.row.numel(), self.row.shape[-1]
        tile = TILE if rounding is None else triton.next_power_of_2(width)
        flat = min(FLAT, count & -count)  # divides all
        if rounding is None and not self.activation.gated and count >= MANY and flat >= TILE:
            width = tile = flat
        rows = count // width
        _activated[(rows, triton.cdiv(width, tile))](
            self.x, self.row, *pointers(rounding, self.row), width,
            NAME=self.activation.name, GATED=self.activation.gated, TILE=tile,
            ROUND=rounding is not None, **of_rounding(rounding),
            num_warps=4 if rounding is None else min(16, max(1, tile // 512)),
        )  # fmt: skip


def activated(x: Tensor, activation: Activation) -> Tensor:
    assert x.is_contiguous()
    y = torch.empty((*x.shape[:-1], activation.width(x.shape[-1])), dtype=x.dtype, device=x.device)
    result = WaitingActivation(x, activation, y)
    if (ahead := NormsAhead.current()) is not None and ahead.awaits(y):
        ahead.put(result)
    else:
        result.launch()
    return y


def constants(activation: Activation | None) -> dict[str, str | bool]:
    """Returns what a product is told of the activation that it ends with."""
    return {"ACT": "", "GATED": False} if activation is None else {"ACT": activation.name, "GATED": activation.gated}
