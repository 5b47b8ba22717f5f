"""How much memory a device has left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
LIMITS = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))  # v2, v1


def free_bytes(device: torch.device) -> int:
    """Returns the bytes that may be taken on a device, on the CPU by this process and its cgroup; 0 where nothing says
    so."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min([*_available(), *_cgroup()], default=0)


def _available() -> Iterator[int]:
    with suppress(OSError):
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _cgroup() -> Iterator[int]:
    for limit, used in LIMITS:
        with suppress(OSError, ValueError):  # "max": there is none
            yield max(0, int((CGROUP / limit).read_text()) - int((CGROUP / used).read_text()))
