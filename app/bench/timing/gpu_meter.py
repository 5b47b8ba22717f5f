"""The share of time in which GPUs are busy, by nvidia-smi."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO

import torch

COMMAND = ("nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits")
MILLISECONDS = 200  # from sample to sample


class GpuMeter:
    """Samples the devices from now on, in a process of its own; of others than CUDA's, and without nvidia-smi, it knows
    nothing."""

    def __init__(self, devices: Sequence[torch.device], command: Sequence[str] = COMMAND):
        self._samples: list[tuple[float, float]] = []  # when, by time.perf_counter, and the share, 0 to 1
        self._process = None
        ids = [_uuid(device) for device in devices if device.type == "cuda"]
        if ids:
            with contextlib.suppress(OSError):
                self._start([*command, f"--id={','.join(ids)}", f"--loop-ms={MILLISECONDS}"])

    def _start(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None  # a pipe
        threading.Thread(target=self._read, args=(self._process.stdout,), name="gpu-meter", daemon=True).start()

    @property
    def pids(self) -> tuple[int, ...]:
        return (self._process.pid,) if self._process else ()

    def busy(self, begin: float, end: float) -> float | None:
        """Returns the mean share (0 to 1) of all devices between two times of time.perf_counter; None where there is no
        sample."""
        shares = [share for when, share in tuple(self._samples) if begin <= when <= end]
        return sum(shares) / len(shares) if shares else None

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            if (share := line.strip()).isdigit():  # else [N/A]
                self._samples.append((time.perf_counter(), int(share) / 100))


def _uuid(device: torch.device) -> str:
    """Returns what nvidia-smi calls a device; its numbers are others than CUDA_VISIBLE_DEVICES'."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
