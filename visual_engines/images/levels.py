"""Pictures as levels in 8 bits, scaled by torch alone to the bits that torchvision makes."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Size = tuple[int, int]  # (height, width)
BILINEAR, BICUBIC = 2, 3  # of PIL.Image.Resampling
MODES = {BILINEAR: "bilinear", BICUBIC: "bicubic"}  # that `resized` has


def to_levels(picture: np.ndarray) -> Tensor:
    """Turns [H, W, 3] uint8 -> [1, 3, H, W] in the order of the picture's bytes, in which resizing is fastest"""
    import torch

    return torch.from_numpy(picture.copy())[None].permute(0, 3, 1, 2)


def resized(levels: Tensor, size: Size, mode: str) -> Tensor:
    """Scales to (height, width) with antialiasing, by "bilinear" or "bicubic": in 8 bits where torch has it for the
    processor, as torchvision does."""
    import torch
    from torch.nn.functional import interpolate

    if tuple(levels.shape[2:]) == size:
        return levels
    is_native = mode == "bicubic" or _has_native_bilinear()
    given = levels if is_native else levels.contiguous().float()
    scaled = interpolate(given, size, mode=mode, align_corners=False, antialias=True)
    return scaled if is_native else scaled.round_().to(torch.uint8)


def _has_native_bilinear() -> bool:
    import torch

    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")
