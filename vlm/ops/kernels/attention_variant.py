"""Attention's variants in kernels: softcapped scores, and sliding windows, which are compiled in."""

from __future__ import annotations

from typing import Any

import triton.language as tl

from vlm.ops.attention_variant import AttentionVariant
from vlm.ops.kernels.jit import jit

LOG2E = 1.4426950408889634


@jit
def base_2_scores(x, CAP: tl.constexpr):
    """Returns what exp2 turns into weights: products times `product_scale`, or CAP · tanh of them · log2(e)."""
    if CAP > 0:
        return (CAP * 1.4426950408889634) * (1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))
    else:
        return x


def product_scale(scale: float, variant: AttentionVariant) -> float:
    """Returns what products of queries and keys are multiplied by before `base_2_scores`."""
    return scale * LOG2E if variant.softcap is None else scale / variant.softcap


def constants(variant: AttentionVariant) -> dict[str, Any]:
    """Returns what a kernel is told: 0 for no cap, -1 for no window."""
    return {"CAP": variant.softcap or 0.0, "REACH": -1 if variant.reach is None else variant.reach}
