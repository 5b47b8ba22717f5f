"""Norms of one row that the product behind them computes."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def norms_ahead(device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context within which a norm of one row may wait for the product that takes its row: one kernel then
    computes both. What else reads its results finds them, too."""
    if device.type != "cuda":
        return nullcontext()
    from vlm.ops.kernels.norms_ahead import NormsAhead

    return NormsAhead()
