"""What trainings share of their optimizers."""

from __future__ import annotations

import torch


def adamw(model: torch.nn.Module, learning_rate: float) -> torch.optim.AdamW:
    """Returns AdamW of all parameters of `model`, of which matrices decay and vectors do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": 0.02},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98), fused=parameters[0].device.type == "cuda")
