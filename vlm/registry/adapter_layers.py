"""What an adapter changes of a network -> the banks of its layers; of a rank's part its rows and columns."""

from __future__ import annotations

import torch
from torch import nn

from vlm.layers.adapters.base import AdapterBank, AdapterWeights, Layers
from vlm.layers.linear import Linear


def put_adapter(network: nn.Module, slot: int, layers: Layers, *, device: torch.device, dtype: torch.dtype) -> bool:
    """Gives the layers of a network, which has banks, what an adapter changes of them, in place of what lay in its
    slot. What other stages of a pipeline run is passed over. Says whether banks have grown."""
    has_grown = False
    for path, linear in network.named_modules():
        if not isinstance(linear, Linear) or not isinstance(bank := linear.adapters, AdapterBank):
            continue
        parts = bank.parts
        bank.clear(slot)
        for whole in layers.get(path, ()):
            _put(bank, slot, linear, whole, device=device, dtype=dtype)
        has_grown |= bank.parts != parts
    return has_grown


def _put(
    bank: AdapterBank, slot: int, linear: Linear, whole: AdapterWeights, *, device: torch.device, dtype: torch.dtype
) -> None:
    for part, rows in zip(linear.part_sizes, linear.rows, strict=True):
        if (weights := whole.part(rows, linear.columns)) is not None:
            bank.put(slot, part, weights.to(device, dtype))
