"""What a GPU has."""

from __future__ import annotations

import functools
from typing import Any

import torch


@functools.cache
def device_properties(index: int | None) -> Any:
    """Returns CUDA's properties of a device; None: of the first one."""
    return torch.cuda.get_device_properties(index or 0)
