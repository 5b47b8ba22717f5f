"""A CUDA device's context, made beside the import of torch: each takes about a second, and neither needs the other."""

from __future__ import annotations

import ctypes
import os
import re
import threading

DRIVER = "libcuda.so.1"


def start_context(device: str) -> threading.Thread | None:
    """Makes the primary context of a device (auto, cuda, cuda:N) in a thread: torch takes it when it comes to that.
    Returns None for another device; without a driver nothing happens, and of what fails torch will tell."""
    if (match := re.fullmatch(r"auto|cuda(?::(\d+))?", device)) is None:
        return None
    thread = threading.Thread(target=_retain, args=(int(match[1] or 0),), name="cuda-context", daemon=True)
    thread.start()
    return thread


def _retain(number: int) -> None:
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does; the driver reads it once
    try:
        driver = ctypes.CDLL(DRIVER)  # whose calls leave Python's lock to others
    except OSError:
        return
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    for call, *arguments in (
        (driver.cuInit, 0),
        (driver.cuDeviceGet, ctypes.byref(handle), number),
        (driver.cuDevicePrimaryCtxRetain, ctypes.byref(context), handle),
    ):
        if call(*arguments):  # an error's number
            return
