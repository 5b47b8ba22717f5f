"""What a process may still take of the machine's memory, and of its cgroup's."""

from __future__ import annotations

import pytest
import torch

from vlm_app.core import free_memory

MEMINFO = "MemTotal: 4096 kB\nMemAvailable: 2048 kB\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 0),
        ({"meminfo": MEMINFO}, 2048 * 1024),
        ({"meminfo": MEMINFO, "memory.max": "max", "memory.current": "5"}, 2048 * 1024),
        ({"meminfo": MEMINFO, "memory.max": "5000", "memory.current": "2000"}, 3000),
        ({"meminfo": MEMINFO, "memory/memory.limit_in_bytes": "10", "memory/memory.usage_in_bytes": "20"}, 0),
    ],
)
def test_the_smallest_of_what_is_free_counts(tmp_path, monkeypatch, files, expected):
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(free_memory, "CGROUP", tmp_path)
    assert free_memory.free_bytes(torch.device("cpu")) == expected
