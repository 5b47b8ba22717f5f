from __future__ import annotations

import os
from pathlib import Path

import pytest

GPU = Path(__file__).parent / "gpu"

# two cores: a thread pool a process is slower than none
os.environ.setdefault("OMP_NUM_THREADS", "2")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m gpu` looks into tests/gpu alone: a machine with a GPU need not have what the other tests import."""
    other = collection_path.suffix == ".py" and GPU not in collection_path.parents
    return True if config.getoption("markexpr") == "gpu" and other else None
