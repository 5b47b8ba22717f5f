"""A GPU of compute capability 9.0, for tests of what would run on one."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

import pytest

MEMORY = 227 * 1024  # bytes of shared memory that a program may have


def pretend(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a kernel's module find that the device is one."""
    monkeypatch.setattr(kernel.gemm, "is_there", lambda device: True)
    properties = SimpleNamespace(shared_memory_per_block_optin=MEMORY)
    monkeypatch.setattr(kernel, "device_properties", lambda index: properties)
