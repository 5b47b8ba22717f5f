"""What the host tells the slots of a batch."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlm.executor.upload import upload


class SlotUpload:
    """Collects values of per-slot tensors, and writes them."""

    def __init__(self, slots: list[int], device: torch.device):
        self._device = device
        self._targets: list[Tensor] = []
        self._parts: list[npt.NDArray] = [np.array(slots, np.int64)]

    def put(self, target: Tensor, values: list) -> None:
        """Takes the slots' values of a target, a row a slot; rows may be shorter than the target's, whose rest is stale
        then."""
        self._targets.append(target)
        self._parts.append(np.array(values, _numpy_type(target.dtype)))

    def write(self) -> None:
        """Writes target[slots] = values for every target."""
        slots, *values = upload(self._parts, self._device)
        for target, new in zip(self._targets, values, strict=True):
            place = target if new.ndim == 1 else target[:, : new.shape[1]]
            place.index_copy_(0, slots, new)


@functools.cache
def _numpy_type(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype
