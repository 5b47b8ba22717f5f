"""Attention of heads that share keys, in CUDA C++: it compiles without a GPU, what it computes tests/gpu shows."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed on this platform")
from vlm.ops.kernels import attend_group, nvrtc
from vlm.ops.layouts.paged_kv import PagedKV

pytestmark = pytest.mark.slow  # it compiles all variants
CONSTANTS = {
    "X_TYPE": 1, "KV_TYPE": 1, "HEADS": 16, "GROUP": 2, "DIM": 128, "HALF": 64, "BLOCK": 16, "CLUSTER": 1, "WARPS": 4,
    "STAGES": 3, "NEW": 1, "CAP": "0.0f", "REACH": -1, "LARGEST": "1.0f",
    "BIAS": 0,
}  # fmt: skip


def compiled(**changes: int | str) -> bytes:
    return nvrtc.compiled("attend_group.cu", tuple((CONSTANTS | changes).items()), "sm_90a")


@pytest.mark.skipif(not nvrtc.is_there(), reason="this torch brings no NVRTC")
@pytest.mark.parametrize("kept", [-1, 2, 3])
@pytest.mark.parametrize("x_type", [0, 1])
def test_it_compiles_for_every_type_and_variant(x_type, kept):
    types = {"X_TYPE": x_type, "KV_TYPE": x_type if kept < 0 else kept}
    for new, group in itertools.product((0, 1), (1, 2, 16)):
        assert compiled(**types, NEW=new, GROUP=group, BIAS=int(group == 1), WARPS=2 if group == 1 else 8)
    assert compiled(**types, HALF=16, GROUP=8, CAP="3.0e1f", REACH=37, CLUSTER=4, STAGES=4)
    if kept < 0:
        assert compiled(**types, DIM=64, HALF=32, CLUSTER=8)


def test_shared_memory_holds_what_is_merged():
    """In the place of the stages."""
    for group, dim, kept in itertools.product((2, 8, 16), (64, 128), (torch.bfloat16, torch.int8, torch.float8_e4m3fn)):
        stages = attend_group.num_stages(dim, kept)
        for warps, each in ((1, 2), (2, stages), (4, 2), (4, stages), (8, 2)):
            assert (warps + 1) * group * (dim + 2) * 4 <= attend_group.shared_memory(dim, kept, warps, each, new=False)
        program = attend_group.shared_memory(dim, kept, attend_group.WARPS, stages, new=True) + attend_group.RESERVED
        assert 2 * program <= attend_group.MEMORY


def test_programs_run_together_where_they_can():
    shared = lambda pairs, kept: attend_group.sharing(pairs, 2048, 128, kept, 132)[:2]  # noqa: E731
    assert [shared(pairs, torch.bfloat16) for pairs in (16, 33, 264, 512)] == [(4, 8), (4, 4), (4, 1), (2, 1)]
    assert [shared(pairs, torch.float8_e4m3fn) for pairs in (16, 33, 396, 512)] == [(4, 8), (4, 8), (4, 1), (2, 1)]
    assert attend_group.sharing(384, 2048, 128, torch.bfloat16, 132) == (2, 1, 4), "with more stages"
    assert attend_group.sharing(192, 2048, 64, torch.bfloat16, 132) == (4, 2, 4)
    assert attend_group.sharing(512, 2048, 64, torch.bfloat16, 132) == (4, 1, 2), "with fewer stages"


@pytest.mark.parametrize(
    "pairs, tokens, cluster",
    [(8, 2048, 8), (12, 2048, 8), (34, 2048, 2), (66, 2048, 2), (66, 600, 1), (67, 2048, 1), (132, 64, 1)],
)
def test_a_processor_has_one_program_of_many_warps(pairs, tokens, cluster):
    for kept in (torch.bfloat16, torch.float8_e4m3fn):
        assert attend_group.sharing(pairs, tokens, 128, kept, 132) == (8, cluster, 2)


@pytest.mark.parametrize(
    "rows, kv_heads, blocks, is_faster",
    [(1, 2, 16, False), (2, 2, 64, False), (2, 2, 65, True), (1, 2, 200, True), (3, 2, 1, True), (8, 4, 200, False)],
)
def test_heads_that_share_keys_read_them_once(rows, kv_heads, blocks, is_faster):
    kv = PagedKV(*torch.zeros(2, 3, kv_heads, 16, 64, dtype=torch.float16))
    q, tables = torch.zeros(rows, 4, 64, dtype=torch.float16), torch.zeros(rows, blocks, dtype=torch.int32)
    assert attend_group.is_faster(q, kv, tables) == is_faster


def test_processors_get_the_same_number_of_programs():
    program = attend_group.shared_memory(128, torch.int8, 2, attend_group.num_stages(128, torch.int8), new=True)
    share = attend_group.fair_share(512, 132)
    assert share > program
    assert 4 * (share + attend_group.RESERVED) <= attend_group.MEMORY < 5 * (share + attend_group.RESERVED)


@pytest.mark.parametrize(
    "pairs, tokens, warps, stages",
    [
        (256, 64, 4, 4), (512, 64, 4, 2), (600, 64, 2, 4), (792, 1024, 2, 4), (793, 1024, 2, 3), (925, 64, 2, 2),
        (1056, 1024, 2, 2), (1057, 64, 1, 2), (1057, 1024, 2, 4),
    ],
)  # fmt: skip
def test_programs_of_two_warps_have_stages_with_which_all_run_together(pairs, tokens, warps, stages):
    assert attend_group.sharing(pairs, tokens, 64, torch.bfloat16, 132) == (warps, 1, stages)


def test_the_cpu_is_for_others():
    kv = PagedKV(*torch.zeros(2, 3, 2, 16, 64, dtype=torch.float16))
    assert not attend_group.fits(torch.zeros(1, 4, 64, dtype=torch.float16), kv, None)


@pytest.mark.parametrize("kept, memory, is_taken", [
    (torch.bfloat16, 227, True), (torch.bfloat16, 99, False), (torch.float8_e4m3fn, 99, True),
])  # fmt: skip
def test_gpus_of_little_shared_memory_are_for_others(kept, memory, is_taken, monkeypatch):
    properties = SimpleNamespace(shared_memory_per_block_optin=memory * 1024)
    monkeypatch.setattr(attend_group, "device_properties", lambda index: properties)
    monkeypatch.setattr(attend_group, "num_processors", lambda device: 132)
    monkeypatch.setattr(attend_group.nvrtc, "copies_boxes", lambda device: True)
    kv = PagedKV(*torch.zeros(2, 3, 2, 16, 128, dtype=kept))
    assert attend_group.fits(torch.zeros(1, 4, 128, dtype=torch.bfloat16), kv, None) == is_taken
