"""Tensors of the host that go to a device together."""

from __future__ import annotations

import pytest
import torch

from vlm.executor.upload import stack_into, upload_stacked


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_tensors_are_stacked_however_they_lie(dtype):
    picture = torch.arange(3 * 8 * 8).to(dtype).view(8, 8, 3)
    tensors = [picture[:4, :4].permute(2, 0, 1), picture[4:, 4:].permute(2, 0, 1), torch.ones(3, 4, 4, dtype=dtype)]
    out = torch.empty(3, 3, 4, 4, dtype=dtype)
    stack_into(out, iter(tensors))
    assert torch.equal(out, torch.stack(tensors)) and torch.equal(out, upload_stacked(tensors, torch.device("cpu")))


@pytest.mark.parametrize("count", [1, 3])
def test_there_are_as_many_as_rows(count):
    with pytest.raises(ValueError):
        stack_into(torch.empty(2, 4), [torch.zeros(4)] * count)
