"""Attention that is written in CUDA C++: it compiles without a GPU, what it computes tests/gpu shows."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from vlm.ops.kernels import attend, nvrtc, paged_attention
from vlm.ops.layouts.paged_kv import PagedKV

CONSTANTS = {
    "X_TYPE": 0, "KV_TYPE": 0, "HEADS": 16, "GROUP": 1, "DIM": 64, "HALF": 0, "BLOCK": 32, "CLUSTER": 8, "WARPS": 4,
    "UNROLL": 2, "STAGES": 4, "NEW": 0, "BIAS": 0, "CAP": "0.0f", "REACH": -1, "LARGEST": "127.0f",
}  # fmt: skip


def compiled(**changes: int | str) -> bytes:
    return nvrtc.compiled("attend.cu", tuple((CONSTANTS | changes).items()), "sm_90")


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("kept", [-1, 2, 3])
@pytest.mark.parametrize("x_type", attend.X_TYPES.values())
def test_it_compiles_for_every_type_and_variant(x_type, kept):
    types = {"X_TYPE": x_type, "KV_TYPE": x_type if kept < 0 else kept}
    for new, bias in itertools.product((0, 1), (0, 1)):
        assert compiled(**types, NEW=new, BIAS=bias)
    assert compiled(**types, NEW=1, DIM=128, HALF=64, GROUP=4, CAP="3.0e1f", REACH=37, CLUSTER=2, STAGES=2)
    assert compiled(**types, DIM=80)
    assert compiled(**types, DIM=256)


def test_its_shared_memory_leaves_room_for_a_product_beside_it():
    vectors, found, gathered = 4 * 4 * 2 * 32 * 32, 4 * 4 * 66, 4 * 8 * 66
    assert attend.shared_memory(dict(CONSTANTS)) == vectors + found + gathered + attend.BARRIER
    with_extras = dict(CONSTANTS) | {"KV_TYPE": 2, "BIAS": 1}
    assert attend.shared_memory(with_extras) == vectors // 32 * (32 + 12) + found + gathered + attend.BARRIER


def test_a_cluster_is_as_large_as_two_programs_a_processor_allow():
    sizes = {pairs: attend.cluster_size(pairs, 132) for pairs in (1, 16, 32, 33, 66, 128, 132, 133, 1000)}
    assert sizes == {1: 8, 16: 8, 32: 8, 33: 8, 66: 4, 128: 2, 132: 2, 133: 1, 1000: 0}


def test_the_cpu_is_for_others():
    kv = PagedKV(*torch.zeros(2, 3, 4, 16, 64, dtype=torch.float16))
    assert not attend.fits(torch.zeros(1, 4, 64, dtype=torch.float16), kv, None)


@pytest.mark.parametrize(
    "kept, splits", [(torch.float16, (4, 2, 2, 1)), (torch.int8, (2, 2, 1, 1)), (torch.float8_e4m3fn, (1, 1, 1, 1))]
)
def test_how_often_contexts_that_share_no_cluster_are_split(kept, splits, monkeypatch):
    """Of 8, 16, 32 and 64 rows of 32 heads of 128 values."""
    monkeypatch.setattr(paged_attention, "device_properties", lambda index: SimpleNamespace(multi_processor_count=132))
    kv = PagedKV(*torch.empty(2, 1, 32, 16, 128, dtype=kept, device="meta"))
    found = []
    for rows in (8, 16, 32, 64):
        q = torch.empty(rows, 32, 128, dtype=torch.float16, device="meta")
        found.append(paged_attention.num_splits(q, kv, torch.empty(rows, 64, device="meta")))
    assert tuple(found) == splits
