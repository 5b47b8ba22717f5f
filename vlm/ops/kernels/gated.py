"""Gated activation in one pass, in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.jit import jit

TILE = 1024


@jit
def _tanh(x):
    return 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)


@dependent
def _gated(x_ptr, y_ptr, F, ACTIVATION: tl.constexpr, TILE: tl.constexpr):
    let_next_start()
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * TILE + tl.arange(0, TILE)
    mask = i < F
    a = tl.load(x_ptr + row * 2 * F + i, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(x_ptr + row * 2 * F + F + i, mask=mask, other=0.0).to(tl.float32)
    if ACTIVATION == "gelu":
        a = 0.5 * a * (1.0 + tl.erf(a * 0.7071067811865476))
    elif ACTIVATION == "gelu_new":
        a = 0.5 * a * (1.0 + _tanh(0.7978845608028654 * (a + 0.044715 * a * a * a)))
    elif ACTIVATION == "relu":
        a = tl.maximum(a, 0.0)
    else:
        a = a / (1.0 + tl.exp(-a))
    tl.store(y_ptr + row * F + i, (a * b).to(y_ptr.dtype.element_ty), mask=mask)


def gated(x: Tensor, activation: str) -> Tensor:
    assert x.is_contiguous()
    rows, width = x.shape[0], x.shape[1] // 2
    y = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    _gated[(rows, triton.cdiv(width, TILE))](x, y, width, ACTIVATION=activation, TILE=TILE, num_warps=4)
    return y
