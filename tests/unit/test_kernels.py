"""The Triton kernels on Triton's interpreter against their plain-torch references: no GPU needed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

SCRIPT = """
import torch
from tests.kernel_cases import CASES
for name, case in CASES.items():
    torch.manual_seed(0)
    case(torch.device("cpu"))
    print("ok", name)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed on this platform")
def test_kernels_equal_their_references_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, cwd=".")
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("ok ") == 24
