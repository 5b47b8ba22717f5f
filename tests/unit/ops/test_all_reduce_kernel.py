"""The sum of ranks by each other's memory, on Triton's interpreter: processes that share memory stand for GPUs."""

from __future__ import annotations

import importlib.util
import multiprocessing

import pytest
import torch

CAPACITY = 1024
SIZES = ((130, torch.float16), (700, torch.float16), (256, torch.bfloat16), (100, torch.float32), (2, torch.float16))


def summed(rank: int, buffers: list[torch.Tensor], results: torch.Tensor) -> None:
    """Is one rank: sums vectors of several sizes and types, twice as many as there are buffers."""
    from vlm.ops.kernels.all_reduce import WORDS, all_reduce

    torch.manual_seed(0)
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers])
    calls, ended = torch.zeros(CAPACITY // WORDS, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    for size, dtype in SIZES:
        parts = torch.randn(len(buffers), size).to(dtype)
        x, want = parts[rank].clone(), parts.float().sum(0)
        all_reduce(x, addresses, calls, ended, capacity=CAPACITY, rank=rank, ranks=len(buffers))
        near = {"atol": 2e-2, "rtol": 1e-2} if dtype == torch.bfloat16 else {"atol": 1e-3, "rtol": 1e-3}
        torch.testing.assert_close(x.float(), want, **near)  # the interpreter cuts bfloat16 off
    ended.fill_(1)
    all_reduce(torch.zeros(4), addresses, calls, ended, capacity=CAPACITY, rank=rank, ranks=len(buffers))
    results[rank] = 1


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed on this platform")
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_sum_by_each_others_memory(size, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    context = multiprocessing.get_context("spawn")
    buffers = [torch.zeros(2 * size * CAPACITY, dtype=torch.int64).share_memory_() for _ in range(size)]
    results = torch.zeros(size).share_memory_()
    processes = [context.Process(target=summed, args=(rank, buffers, results)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * size and results.all()
