"""What an adapter adds to a network -> the banks of its layers, of a rank's part the rows and columns that it has."""

from __future__ import annotations

import torch
from torch import nn

from vlm.layers.adapters.lora import Layers, LoraBank, LoraWeights
from vlm.layers.linear import Linear


def put_lora(network: nn.Module, adapter_id: int, layers: Layers, *, device: torch.device, dtype: torch.dtype) -> None:
    """Gives the layers of a network, which has banks, what an adapter adds to them. What other stages of a pipeline run
    is passed over."""
    for path, linear in network.named_modules():
        if not isinstance(linear, Linear) or not isinstance(linear.adapters, LoraBank):
            continue
        for whole in layers.get(path, ()):
            a = whole.a[:, linear.columns].to(device, dtype)
            for part, rows in zip(linear.part_sizes, linear.rows, strict=True):
                if (b := whole.b[rows]).any():
                    linear.adapters.put(adapter_id, part, LoraWeights(a, b.to(device, dtype)))
