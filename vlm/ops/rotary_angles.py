"""Positions as the angles that heads are turned by."""

from __future__ import annotations

import torch
from torch import Tensor


def reference(positions: Tensor, frequencies: Tensor, axes: Tensor, scale: float) -> Tensor:
    by_frequency = positions[axes].T if len(axes) else positions[:, None]
    angles = by_frequency.float() * frequencies
    cos_sin = torch.stack((angles.cos(), angles.sin()), 1)
    return cos_sin if scale == 1.0 else cos_sin * scale


def rotary_angles(positions: Tensor, frequencies: Tensor, axes: Tensor, scale: float) -> Tensor:
    """Returns the cosines and sines [R, 2, n] float32, times `scale`, of positions [R] by frequencies [n] float32; of
    [axes, R] where `axes` [n], which is empty otherwise, says for each frequency which of them it is for."""
    if positions.is_cuda:
        from vlm.ops.kernels.rotary import angles as kernel

        return kernel(positions, frequencies, axes, scale)
    return reference(positions, frequencies, axes, scale)
