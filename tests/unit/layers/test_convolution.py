"""Convolutions of float32 take all of its bits, and leave to the process what it has set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from vlm.layers.images import convolution
from vlm.layers.images.convolution import Conv2d, PatchConv2d, whole_float32
from vlm.ops.products.patch_convolution import product


@pytest.fixture(params=[True, False])
def setting(request, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", request.param)
    return request.param


def allowed() -> bool:
    return torch.backends.cudnn.allow_tf32


def test_what_was_set_comes_back(setting):
    with whole_float32():
        with whole_float32():
            assert not allowed()
        assert not allowed(), "the inner one is not the last"
    assert allowed() == setting
    with pytest.raises(ZeroDivisionError), whole_float32():
        raise ZeroDivisionError
    assert allowed() == setting


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_a_process_that_sets_convolutions_by_themselves_keeps_that(precision):
    """Torch does not say then whether it allows fewer bits in all."""
    cudnn: Any = torch.backends.cudnn
    cudnn.allow_tf32 = precision == "ieee"
    try:
        cudnn.conv.fp32_precision = precision
        with pytest.raises(RuntimeError):
            allowed()
        with whole_float32():
            assert cudnn.conv.fp32_precision == "ieee"
        assert cudnn.conv.fp32_precision == precision
    finally:
        cudnn.allow_tf32 = True  # torch's own


def test_others_of_another_thread_are_still_within(setting):
    """Ends in the order in which two threads began."""
    first, second = whole_float32(), whole_float32()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not allowed()
    second.__exit__(None, None, None)
    assert allowed() == setting


@pytest.mark.parametrize("dtype, whole", [(torch.float32, True), (torch.float16, False)])
def test_a_layer_convolves_within(setting, dtype, whole, monkeypatch):
    """A tensor that says it is a GPU's, and a convolution that says what holds meanwhile."""
    seen, pixels = [], torch.zeros(1, 3, 4, 4, dtype=dtype)
    monkeypatch.setattr(nn.Conv2d, "forward", lambda layer, x: seen.append(allowed()))
    layer = Conv2d(3, 8, 2, 2)
    layer.forward(pixels)
    monkeypatch.setattr(convolution, "_takes_fewer_bits", lambda x: x.dtype == torch.float32)
    layer.forward(pixels)
    assert seen == [setting, setting and not whole] and allowed() == setting


@pytest.mark.parametrize("size", [(12, 20), (14, 23)], ids=["whole", "with a rest"])
@pytest.mark.parametrize("bias", [True, False])
@torch.inference_mode()
def test_the_product_of_patches_is_their_convolution(size, bias):
    torch.manual_seed(0)
    patches, pixels = PatchConv2d(3, 8, (4, 5), bias=bias), torch.randn(2, 3, *size)
    plain = torch.nn.functional.conv2d(pixels, patches.weight, patches.bias, stride=(4, 5)).permute(0, 2, 3, 1)
    for found in (patches(pixels), product(pixels, patches.weight, patches.bias)):
        torch.testing.assert_close(found, plain, atol=1e-6, rtol=1e-5)
