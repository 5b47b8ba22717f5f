"""What a GPU has."""

from __future__ import annotations

import functools
from typing import Any

import torch


@functools.cache
def device_properties(index: int | None) -> Any:
    """Returns CUDA's properties of a device; None: of the first one."""
    return torch.cuda.get_device_properties(index or 0)


def num_processors(device: torch.device) -> int:
    """Returns how many multiprocessors a device has."""
    return device_properties(device.index).multi_processor_count


def num_warps(dtype: torch.dtype) -> int:
    """Returns how many warps attend with a tile of 64 rows: more in float32, of which four keep thousands of numbers
    outside their registers, as its products are not the tensor cores'."""
    return 8 if dtype is torch.float32 else 4


def num_stages(width: int, dtype: torch.dtype) -> int:
    """Returns how many tiles of 64 keys and values of so many numbers a kernel may have under way, in 160 KB of shared
    memory."""
    return max(1, min(3, 1280 // (width * dtype.itemsize)))
