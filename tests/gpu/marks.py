"""What tests on a GPU are skipped without."""

from __future__ import annotations

import pytest
import torch

CLUSTERS = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="no CUDA device with compute capability 9.0 is visible",
    ),
]
HOPPER = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="no CUDA device of compute capability 9.0 is visible",
    ),
]
