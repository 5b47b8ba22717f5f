"""Names of devices, alone and in lists -> the devices, where they are there."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from vlm.config import RuntimeConfig
from vlm.errors import InputError

if TYPE_CHECKING:
    import torch


def resolve_device(name: str) -> torch.device:
    """Returns the device of a name, for `auto` CUDA where there is one. Raises InputError for one that is not there."""
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = _named(name, "device")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name} is not there: {torch.cuda.device_count()} CUDA devices are visible; use cpu.")
    return device


def _named(name: str, setting: str) -> torch.device:
    """Returns the device of a name, there or not. Raises InputError, which names the setting, where it is none."""
    import torch

    with contextlib.suppress(RuntimeError):
        device = torch.device(name)
        if device.type == "cuda" or name == "cpu":
            return device
    has = "names" if setting == "devices" else "is"
    raise InputError(f"{setting} {has} {name!r}; allowed are auto, cpu, cuda and cuda:N.", settings=(setting,))


def devices_of(devices: str, setting: str = "devices") -> tuple[str, ...]:
    """Reads `cuda:0,cuda:1`, or `all` that CUDA has, the value of a setting. Raises InputError, which names it, for a
    name of no device, and for `all` of none."""
    if devices != "all":
        names = tuple(name.strip() for name in devices.split(","))
        for name in names:
            if name != "auto":
                _named(name, setting)
        return names
    import torch

    if not torch.cuda.device_count():
        raise InputError(f"{setting} is all, and no CUDA device is visible; give cpu.", settings=(setting,))
    return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))


def chosen_devices(devices: str | None, device: str) -> tuple[str, ...]:
    """Reads `devices` where they are given, else `device`. Raises InputError as `devices_of` does."""
    return devices_of(devices) if devices else devices_of(device, "device")


def separate_devices(devices: str) -> tuple[str, ...]:
    """Reads the devices of processes that each have one: GPUs, or the CPU again and again. Raises InputError for one
    that is not there, for a GPU that is there twice, and for both kinds."""
    names = tuple("cuda:0" if name == "cuda" else name for name in devices_of(devices))
    gpus = [name for name in names if resolve_device(name).type == "cuda"]
    if gpus and len(gpus) < len(names):
        raise InputError(f"devices is {devices}; give the CPU alone, or GPUs alone.", settings=("devices",))
    if len(set(gpus)) < len(gpus):
        raise InputError(f"devices is {devices}; name each GPU once.", settings=("devices",))
    return names


def first_device(runtime: RuntimeConfig) -> torch.device:
    """Returns the device of an engine, or of its first rank. Raises InputError for one that is not there."""
    return resolve_device(runtime.device if runtime.devices is None else devices_of(runtime.devices)[0])


def of_rank(runtime: RuntimeConfig, rank: int, size: int) -> RuntimeConfig:
    """Returns the runtime of one of an engine's `size` ranks, on a device of its own. Raises InputError for another
    number of devices."""
    if runtime.devices is not None:
        return replace(runtime, device=_listed(runtime.devices, size)[rank], devices=None)
    if size == 1:
        return runtime
    import torch

    device = resolve_device(runtime.device)
    if device.type == "cpu":
        return replace(runtime, device="cpu")
    if device.index is not None:
        raise InputError(
            f"device is {runtime.device}, {size} ranks take a GPU each; give cuda, cpu, or each one's with `devices`.",
            settings=("device", "devices"),
        )
    if (count := torch.cuda.device_count()) <= rank:
        raise InputError(f"the engine is built for {size} GPUs, {count} are visible; build it for fewer, or give cpu.")
    return replace(runtime, device=f"cuda:{rank}")


def _listed(devices: str, size: int) -> tuple[str, ...]:
    names = separate_devices(devices)
    if len(names) != size:
        raise InputError(
            f"`devices` names {len(names)} device{'s' * (len(names) > 1)}, the engine is built for {size}"
            f" rank{'s' * (size > 1)}; name {size}, or build it for {len(names)}: vlm build --tp-size {len(names)}.",
            settings=("devices",),
        )
    return names
