"""Norms and activations that the products beside them compute, or who rounds their rows for them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from vlm.ops.products.w8a8 import rounded_from


def norms_ahead(device: torch.device, *, rounds: bool = False, one_reader: bool = False) -> AbstractContextManager[Any]:
    """Returns a context within which a norm of one row may wait for the product that takes its row: one kernel then
    computes both. Where products round their rows to 8 bits (`rounds`), norms and activations of several wait for that.
    What else reads their results finds them, too. Where nothing else does (`one_reader`: the row of a norm that adds is
    read by one product, and what it adds by the norm), the norms of a few rows may be computed by the products ahead of
    them and behind."""
    if device.type != "cuda":
        return nullcontext()
    from vlm.ops.kernels.norms_ahead import NormsAhead

    return NormsAhead(rounded_from(device) if rounds else None, one_reader=one_reader)
