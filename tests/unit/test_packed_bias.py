"""Attention of packed sequences with a bias, in CUDA: it compiles without a GPU, what it computes tests/gpu shows."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from vlm.ops.attention_variant import PLAIN, AttentionVariant
from vlm.ops.kernels import attend_group, nvrtc, packed_bias

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("dim", packed_bias.DIMS)
@pytest.mark.parametrize("x_type", packed_bias.X_TYPES.values())
def test_it_compiles_for_every_type_and_head(x_type, dim):
    assert nvrtc.compiled("packed_bias.cu", (("X_TYPE", x_type), ("DIM", dim)), "sm_90a")[:4] == b"\x7fELF"


def rows(dim: int = 64, dtype: torch.dtype = torch.bfloat16, kv_heads: int = 2) -> Rows:
    q, k, v = torch.zeros(3, 4 + 2 * kv_heads, dim, dtype=dtype).split((4, kv_heads, kv_heads), 1)
    return q, k, v


def test_the_cpu_is_for_others():
    assert not packed_bias.fits(*rows(), torch.zeros(4, 257), PLAIN)


@pytest.fixture
def hopper(monkeypatch):
    """A GPU that takes the kernel."""
    monkeypatch.setattr(packed_bias.gemm, "is_there", lambda device: True)
    properties = SimpleNamespace(shared_memory_per_block_optin=227 * 1024)
    monkeypatch.setattr(packed_bias, "device_properties", lambda index: properties)


@pytest.mark.usefixtures("hopper")
def test_it_takes_heads_of_16_bits_that_see_everything():
    bias = torch.zeros(4, 257)
    for dtype in packed_bias.X_TYPES:
        for dim in packed_bias.DIMS:
            assert packed_bias.fits(*rows(dim, dtype), bias, PLAIN)
    for variant in (AttentionVariant(softcap=30.0), AttentionVariant(reach=100)):
        assert not packed_bias.fits(*rows(), bias, variant)
    assert not packed_bias.fits(*rows(dtype=torch.float32), bias, PLAIN)
    assert not packed_bias.fits(*rows(80), bias, PLAIN)


@pytest.mark.usefixtures("hopper")
def test_rows_must_be_aligned():
    _, k, v = rows()
    q = torch.zeros(3, 4 * 64 + 4, dtype=torch.bfloat16)
    assert not packed_bias.fits(q[:, :-4].view(3, 4, 64), k, v, torch.zeros(4, 257), PLAIN)
    assert not packed_bias.fits(q.flatten()[4:772].view(3, 4, 64), k, v, torch.zeros(4, 257), PLAIN)


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dim, most, is_taken", [(64, 24_000, True), (64, 25_000, False), (128, 21_000, False)])
def test_biases_must_have_room_in_shared_memory(dim, most, is_taken):
    assert packed_bias.fits(*rows(dim), torch.zeros(4, 2 * most + 1), PLAIN) == is_taken


@pytest.mark.parametrize("dim, programs", [(64, 4), (128, 3)])
def test_a_processor_has_memory_for_as_many_programs_as_registers(dim, programs):
    assert programs * (packed_bias.shared_memory(dim, 128) + attend_group.RESERVED) <= attend_group.MEMORY
