"""Convolutions of float32 in all of its bits: cuDNN's take 10 of the 23 of each value unless torch is told otherwise,
which it is for the whole process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from vlm.ops.products.patch_convolution import patch_convolution


class _Within:
    """How many are within `whole_float32`, of any threads; `restore` sets back what held before the first."""

    def __init__(self) -> None:
        self.lock, self.count = Lock(), 0
        self.restore: Callable[[], object] = lambda: None

    def enter(self) -> None:
        with self.lock:
            if self.count == 0:
                self.restore = _take_whole()
            self.count += 1

    def leave(self) -> None:
        with self.lock:
            self.count -= 1
            if self.count == 0:
                self.restore()


def _take_whole() -> Callable[[], object]:
    """Has cuDNN take float32 as it is, and returns what sets back how it was."""
    cudnn: Any = torch.backends.cudnn
    try:
        allowed, cudnn.allow_tf32 = cudnn.allow_tf32, False
    except RuntimeError:  # the process has set convolutions by themselves, of which this setting does not tell
        precision, cudnn.conv.fp32_precision = cudnn.conv.fp32_precision, "ieee"
        return partial(setattr, cudnn.conv, "fp32_precision", precision)
    return partial(setattr, cudnn, "allow_tf32", allowed)


_within = _Within()


@contextmanager
def whole_float32() -> Iterator[None]:
    """Has convolutions that are launched within take float32 as it is. What the process has set comes back behind the
    last of those that are within at once."""
    _within.enter()
    try:
        yield
    finally:
        _within.leave()


class Conv2d(nn.Conv2d):
    """Convolves with as many bits as its weights have."""

    def forward(self, input: Tensor) -> Tensor:
        with whole_float32() if _takes_fewer_bits(input) else nullcontext():
            return super().forward(input)


class PatchConv2d(nn.Conv2d):
    """Maps squares that do not overlap: [n, channels, H, W] -> [n, rows, columns, width]."""

    def __init__(self, channels: int, width: int, patch_size: int | tuple[int, int], *, bias: bool = True):
        super().__init__(channels, width, kernel_size=patch_size, stride=patch_size, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        return patch_convolution(input, self.weight, self.bias)


def _takes_fewer_bits(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32
