"""Attention of packed sequences, in CUDA: it compiles without a GPU, what it computes tests/gpu shows."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from tests.kits.kernels import hopper_kit
from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import attend_group, nvrtc, packed_flash

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
BIASES = [None, torch.zeros(4, 257)]


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dim", packed_flash.PROGRAMS)
@pytest.mark.parametrize("x_type", packed_flash.X_TYPES.values())
def test_it_compiles_for_every_type_and_head(x_type, dim, biased):
    constants = packed_flash.constants_of(x_type, dim, biased=biased)
    assert nvrtc.compiled("packed_flash.cu", tuple(sorted(constants.items())), "sm_90a")[:4] == b"\x7fELF"


def rows(dim: int = 64, dtype: torch.dtype = torch.bfloat16, kv_heads: int = 2) -> Rows:
    q, k, v = torch.zeros(3, 4 + 2 * kv_heads, dim, dtype=dtype).split((4, kv_heads, kv_heads), 1)
    return q, k, v


@pytest.mark.parametrize("bias", BIASES)
def test_the_cpu_is_for_others(bias):
    assert not packed_flash.fits(*rows(), bias, PLAIN)


@pytest.fixture
def hopper(monkeypatch):
    """A GPU that takes the kernel."""
    hopper_kit.pretend(packed_flash, monkeypatch)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("bias", BIASES)
def test_it_takes_heads_of_16_bits_that_see_everything(bias):
    for dtype in packed_flash.X_TYPES:
        for dim in packed_flash.PROGRAMS:
            assert packed_flash.fits(*rows(dim, dtype), bias, PLAIN)
    for variant in (AttentionVariant(softcap=30.0), AttentionVariant(reach=100)):
        assert not packed_flash.fits(*rows(), bias, variant)
    assert not packed_flash.fits(*rows(dtype=torch.float32), bias, PLAIN)
    assert not packed_flash.fits(*rows(80), bias, PLAIN)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("bias", BIASES)
def test_rows_must_be_aligned(bias):
    _, k, v = rows()
    q = torch.zeros(3, 4 * 64 + 4, dtype=torch.bfloat16)
    assert not packed_flash.fits(q[:, :-4].view(3, 4, 64), k, v, bias, PLAIN)
    assert not packed_flash.fits(q.flatten()[4:772].view(3, 4, 64), k, v, bias, PLAIN)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dim, most, is_taken", [(64, 24_000, True), (64, 25_000, False), (128, 21_000, False)])
def test_biases_must_have_room_in_shared_memory(dim, most, is_taken):
    assert packed_flash.fits(*rows(dim), torch.zeros(4, 2 * most + 1), PLAIN) == is_taken


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dim", packed_flash.PROGRAMS)
def test_a_processor_has_memory_for_as_many_programs_as_registers(dim, biased):
    each = packed_flash.shared_memory(dim, 128 if biased else None) + attend_group.RESERVED
    assert packed_flash.PROGRAMS[dim] * each <= attend_group.MEMORY
