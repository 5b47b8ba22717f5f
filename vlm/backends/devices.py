"""A device's name -> the device, where it is there."""

from __future__ import annotations

import torch

from vlm.errors import InputError


def resolve_device(name: str) -> torch.device:
    """Returns the device of a name, for `auto` CUDA where there is one. Raises InputError for one that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name} is not there: {torch.cuda.device_count()} CUDA devices are visible; use cpu.")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N.")
    return device
