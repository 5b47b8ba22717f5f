"""Tensors of the host that go to a device together."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from vlm.executor.inputs import upload
from vlm.executor.inputs.upload import PAGEABLE_BYTES, pack, stack_into, upload_stacked


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_tensors_are_stacked_however_they_lie(dtype):
    picture = torch.arange(3 * 8 * 8).to(dtype).view(8, 8, 3)
    tensors = [picture[:4, :4].permute(2, 0, 1), picture[4:, 4:].permute(2, 0, 1), torch.ones(3, 4, 4, dtype=dtype)]
    out = torch.empty(3, 3, 4, 4, dtype=dtype)
    stack_into(out, iter(tensors))
    assert torch.equal(out, torch.stack(tensors)) and torch.equal(out, upload_stacked(tensors, torch.device("cpu")))


def test_threads_share_large_ones(monkeypatch):
    tensors = [torch.full((2, 300), float(number)) for number in range(9)]
    one_by_one, shared = torch.empty(9, 2, 300), torch.empty(9, 2, 300)
    stack_into(one_by_one, tensors)
    monkeypatch.setattr(upload, "LARGE_BYTES", 1)
    stack_into(shared, tensors)
    assert torch.equal(one_by_one, torch.stack(tensors)) and torch.equal(shared, one_by_one)


@pytest.mark.parametrize("large", [1, 1 << 20])
@pytest.mark.parametrize("count", [1, 3])
def test_there_are_as_many_as_rows(count, large, monkeypatch):
    monkeypatch.setattr(upload, "LARGE_BYTES", large)
    with pytest.raises(ValueError):
        stack_into(torch.empty(2, 4), [torch.zeros(4)] * count)


def test_more_than_a_little_comes_out_of_pinned_memory(monkeypatch):
    """Else the host would wait for all that the device is at."""
    pinned = []

    def empty(size: int, *, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        pinned.append(pin_memory)
        return torch.zeros(size, dtype=dtype)

    monkeypatch.setattr(upload, "torch", SimpleNamespace(empty=empty, uint8=torch.uint8))
    arrays = [np.arange(5, dtype=np.int32), np.ones(PAGEABLE_BYTES, np.uint8)]
    for device in (torch.device("cuda"), torch.device("cpu")):
        for count in (1, 2):
            packed, _ = pack(arrays[:count], device)
            assert packed[:20].numpy().view(np.int32).tolist() == [0, 1, 2, 3, 4]
    assert pinned == [False, True, False, False]
