"""What the host tells the slots of a batch, copied to the device at once: a copy for each tensor costs more than its
bytes."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNED = 16  # bytes


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
        begins = np.cumsum([0, *(-(-part.nbytes // ALIGNED) * ALIGNED for part in self._parts)]).tolist()
        packed = np.empty(begins[-1], np.uint8)
        for part, begin in zip(self._parts, begins, strict=False):
            packed[begin : begin + part.nbytes] = part.reshape(-1).view(np.uint8)
        whole = torch.from_numpy(packed).to(self._device, non_blocking=True)
        slots = self._view(whole, 0, torch.int64, begins)
        for i, target in enumerate(self._targets, 1):
            new = self._view(whole, i, target.dtype, begins)
            place = target if new.ndim == 1 else target[:, : new.shape[1]]
            place.index_copy_(0, slots, new)

    def _view(self, whole: Tensor, i: int, dtype: torch.dtype, begins: list[int]) -> Tensor:
        part = self._parts[i]
        return whole[begins[i] : begins[i] + part.nbytes].view(dtype).view(part.shape)


@functools.cache
def _numpy_type(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype
