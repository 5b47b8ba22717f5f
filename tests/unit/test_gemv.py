"""The product of one row that is written in CUDA C++: it compiles without a GPU, what it computes tests/gpu shows."""

from __future__ import annotations

import itertools

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from vlm.ops.activation import Activation
from vlm.ops.kernels import gemv, nvrtc

needs_nvrtc = pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
CONSTANTS = {"Y_TYPE": "FLOAT16", "BIAS": 1, "GROUP": 128, "WARPS": 16, "STAGES": 3}


def compiled(architecture: str = "sm_90", **constants: int | str) -> bytes:
    return nvrtc.compiled("gemv.cu", tuple(sorted((CONSTANTS | constants).items())), architecture)


@needs_nvrtc
@pytest.mark.parametrize("kind", gemv.KINDS.values())
def test_it_compiles_for_every_type_and_ending(kind):
    zeros = (0, 1) if kind == "INT4" else (0,)
    for x, zero in itertools.product(gemv.X_TYPES.values(), zeros):
        assert compiled(KIND=kind, X_TYPE=x, ZERO=zero, ACT="SILU", GATED=1)[:4] == b"\x7fELF"
    for ending in gemv.ACTIVATIONS.values():
        assert compiled(KIND=kind, X_TYPE="FLOAT16", ZERO=0, ACT=ending, GATED=0)
    assert compiled("sm_120", KIND=kind, X_TYPE="FLOAT16", ZERO=0, ACT="NO_ACT", GATED=0)


@needs_nvrtc
def test_what_does_not_compile_is_named():
    with pytest.raises(nvrtc.CompileError, match=r"gemv\.cu .*'KIND': 'INT3'"):
        compiled(KIND="INT3", X_TYPE="FLOAT16", ZERO=0, ACT="UNHEARD_OF(", GATED=0)


def test_the_shape_of_a_program_s_memory():
    shape = gemv.Shape("INT4", inputs=11008, results=4096, gated=False, processors=132)
    assert (shape.row_bytes, shape.warps, shape.stages) == (5504, 16, 3)
    assert shape.shared == 3 * 16 * 1024 + 2 * 11008 + 4 * 16 * 16 + 4 * 16 + 4 * (86 + 3) + 16 * 3
    assert (
        gemv.Shape("INT8", inputs=512, results=64, gated=False, processors=132).warps == 8
    )  # a row that 16 would share has 1,024 bytes


def test_more_rows_float32_and_the_cpu_are_for_others():
    weight = torch.zeros(64, 256, dtype=torch.int8)
    assert not gemv.fits(torch.zeros(2, 256, dtype=torch.float16), weight, 1, None)
    assert not gemv.fits(torch.zeros(1, 256), weight, 1, Activation("silu", gated=True))
    assert not gemv.fits(torch.zeros(1, 256, dtype=torch.float16), weight, 1, None)
