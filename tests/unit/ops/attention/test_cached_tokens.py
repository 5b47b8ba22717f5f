"""What the CPU's attention reads of a paged cache: of one sequence without a copy, where its blocks are a run."""

from __future__ import annotations

import pytest
import torch

from vlm.engine.block_manager import BlockManager
from vlm.ops.attention.kv_write import kv_write
from vlm.ops.attention.paged_attention import cached_tokens
from vlm.ops.layouts.paged_kv import KVCache, PagedKV

BLOCK, HEADS, DIM, LENGTH = 4, 2, 3, 10
CPU = torch.device("cpu")


def cache(dtype: torch.dtype) -> PagedKV:
    size = {"heads": HEADS, "block_size": BLOCK, "head_dim": DIM}
    return KVCache.zeros(range(1), 12, **size, dtype=dtype, device=CPU).layer(0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("blocks", [(5, 6, 7), (7, 5, 6)], ids=["run", "scattered"])
def test_one_row_reads_what_was_written_token_by_token(blocks, dtype):
    kv, tables = cache(dtype), torch.tensor([[0, 0, 0], blocks], dtype=torch.int32)
    slot = torch.tensor([1], dtype=torch.int32)
    keys, values = torch.randn(2, LENGTH, HEADS, DIM, generator=torch.Generator().manual_seed(0)).unbind(0)
    for at in range(LENGTH):
        k, v = (side[at : at + 1].to(torch.float32 if dtype == torch.int8 else dtype) for side in (keys, values))
        kv_write(k, v, kv, tables, slot, torch.tensor([at], dtype=torch.int32))
    k, v, inside = cached_tokens(kv, tables, slot, torch.tensor([LENGTH], dtype=torch.int32))
    near = {"atol": 0.0 if dtype == torch.float32 else 0.03, "rtol": 0.0 if dtype == torch.float32 else 0.01}
    for found, written in ((k, keys), (v, values)):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found[0].transpose(0, 1), written, **near)
    assert inside.shape == (1, LENGTH) and inside.all()
    is_view = k.untyped_storage().data_ptr() == kv.keys.untyped_storage().data_ptr()
    assert is_view == (dtype == torch.float32 and blocks == (5, 6, 7))


def test_blocks_that_come_back_are_given_out_as_a_run_again():
    manager = BlockManager(6, 4)
    first = manager.allocate(4, "self")
    manager.free(first)
    assert manager.allocate(4, "self") == first == [1, 2, 3, 4]
