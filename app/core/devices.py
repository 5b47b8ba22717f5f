"""The devices of this machine that an option names."""

from __future__ import annotations

from vlm.errors import InputError


def devices_of(devices: str) -> tuple[str, ...]:
    """Reads `cuda:0,cuda:1`, or `all` that CUDA has; InputError for none."""
    if devices != "all":
        return tuple(name.strip() for name in devices.split(","))
    import torch

    if not torch.cuda.device_count():
        raise InputError("--devices is all, and no CUDA device is visible; give cpu.")
    return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
