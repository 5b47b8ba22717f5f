"""What an adapter adds to a network -> the banks of its layers, of a rank's part the rows and columns that it has."""

from __future__ import annotations

import torch
from torch import nn

from vlm.layers.adapters.lora import Layers, LoraBank, LoraWeights
from vlm.layers.linear import Linear


def put_lora(network: nn.Module, slot: int, layers: Layers, *, device: torch.device, dtype: torch.dtype) -> bool:
    """Gives the layers of a network, which has banks, what an adapter adds to them, in place of what lay in its slot.
    What other stages of a pipeline run is passed over. Says whether banks have grown."""
    has_grown = False
    for path, linear in network.named_modules():
        if not isinstance(linear, Linear) or not isinstance(bank := linear.adapters, LoraBank):
            continue
        parts = [*bank.parts]
        bank.clear(slot)
        for whole in layers.get(path, ()):
            _put(bank, slot, linear, whole, device=device, dtype=dtype)
        has_grown |= bank.parts != parts
    return has_grown


def _put(
    bank: LoraBank, slot: int, linear: Linear, whole: LoraWeights, *, device: torch.device, dtype: torch.dtype
) -> None:
    a = whole.a[:, linear.columns].to(device, dtype)
    for part, rows in zip(linear.part_sizes, linear.rows, strict=True):
        if (b := whole.b[rows]).any():
            bank.put(slot, part, LoraWeights(a, b.to(device, dtype)))
