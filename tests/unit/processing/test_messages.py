"""What ranks are told: the same objects, in as many bytes as they have."""

from __future__ import annotations

import pytest
import torch

from vlm.errors import InputError
from vlm.parallel.messages import packed, unpacked
from vlm.requests.image import Image
from vlm.requests.pixels import Normalization


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_tensors_arrive_as_they_were_sent(dtype):
    values = torch.randint(0, 2, (3, 4, 5)).to(dtype)
    views = (values.transpose(0, 2), values[..., 1:3], values[:, 0, 0], values[0, 0, :1].expand(4))
    for tensor in (values, values[1], *views, values[0, 0, 0], values[:0]):
        received = unpacked(packed({"tensor": [tensor]}))["tensor"][0]
        assert received.dtype == tensor.dtype and received.shape == tensor.shape
        assert torch.equal(received.float(), tensor.float())
        received.zero_()  # it is the receiver's own


def test_an_image_of_a_batch_goes_without_the_batch():
    batch = torch.zeros(32, 3, 20, 20, dtype=torch.uint8)
    images = [Image(pixels, 4, normalization=Normalization((1.0,), (2.0,))) for pixels in batch]
    content = packed(images)
    assert batch.nbytes < len(content) < 1.5 * batch.nbytes
    assert [image.key for image in unpacked(content)] == [image.key for image in images]


def test_what_is_no_tensor_arrives_too():
    sent = ["step", (1, None), {"seed": 3}, InputError("no")]
    received = unpacked(packed(sent))
    assert received[:3] == sent[:3] and str(received[3]) == "no"


def test_one_tensor_that_is_named_twice_stays_one():
    tensor = torch.arange(4)
    first, second = unpacked(packed([tensor, tensor]))
    assert first is second
