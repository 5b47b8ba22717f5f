"""Convolutions of squares that do not overlap."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from vlm.ops.products.linear import linear


def patch_convolution(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns [n, rows, columns, width] of x [n, channels, H, W], whose sides may leave a rest in no square, and weight
    [width, channels, sides of a square]. On a GPU that is a product, whose rows lie as they are wanted."""
    if x.is_cuda:
        return product(x, weight, bias)
    return F.conv2d(x, weight, bias, stride=tuple(weight.shape[2:])).permute(0, 2, 3, 1)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Computes the same by a product."""
    height, width = weight.shape[2:]
    rows, columns = x.shape[2] // height, x.shape[3] // width
    squares = x[:, :, : rows * height, : columns * width]
    squares = squares.unflatten(3, (columns, width)).unflatten(2, (rows, height)).permute(0, 2, 4, 1, 3, 5)
    return linear(squares.flatten(3), weight.flatten(1), bias)
