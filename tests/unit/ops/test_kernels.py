"""The Triton kernels without a GPU: on Triton's interpreter against their plain-torch references, and compiled."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.kits.kernels.kernel_names import NAMES

HAS_TRITON = importlib.util.find_spec("triton") is not None
SCRIPT = """
import torch
from tests.kits.kernels.kernel_cases import CASES
for name, case in CASES.items():
    torch.manual_seed(0)
    case(torch.device("cpu"))
    print("ok", name)
"""


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed on this platform")
@pytest.mark.parametrize(
    ("dim", "parts"),
    [(12, (16, 16)), (48, (32, 16)), (64, (64, 16)), (72, (64, 16)), (80, (64, 16)), (96, (64, 32)), (104, (128, 16))],
)
def test_heads_that_are_little_wider_than_a_power_of_two_are_multiplied_in_two_parts(dim, parts):
    from vlm.ops.kernels.packed_attention import parts_of

    assert parts_of(dim) == parts
    assert dim <= parts[0] or dim <= sum(parts)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed on this platform")
def test_kernels_equal_their_references_in_the_interpreter():
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, cwd=".")
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.split() == [word for name in NAMES for word in ("ok", name)]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed on this platform")
def test_kernels_compile_for_a_gpu():
    """What the interpreter runs need not compile: in bfloat16, for compute capability 9.0."""
    command = [sys.executable, "-O", "-m", "tests.kits.kernels.compiled_kernels", *NAMES]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    compiled = dict(line.split() for line in run.stdout.splitlines())
    assert tuple(compiled) == NAMES and "0" not in compiled.values()
