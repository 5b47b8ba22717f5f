"""What the host tells the slots of a batch."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlm.executor.inputs.upload import pack, upload


class SlotUpload:
    """Collects values of per-slot tensors, and writes them."""

    def __init__(self, slots: list[int], device: torch.device):
        self.slots, self._device = slots, device
        self._targets: list[Tensor] = []
        self._parts: list[npt.NDArray] = [np.array(slots, np.int64)]

    def put(self, target: Tensor, values: list | npt.NDArray) -> None:
        """Takes the slots' values of a target, a row a slot; rows may be shorter than the target's, whose rest is stale
        then."""
        self._targets.append(target)
        self._parts.append(np.asarray(values, _numpy_type(target.dtype)))

    def write(self) -> None:
        """Writes target[slots] = values for every target."""
        if self._device.type == "cuda":
            self.write_at_once()
            return
        slots, *values = upload(self._parts, self._device)
        for target, new in zip(self._targets, values, strict=True):
            place = target if new.ndim == 1 else target[:, : new.shape[1]]
            place.index_copy_(0, slots, new)

    def write_at_once(self) -> None:
        """Writes them by one kernel."""
        from vlm.ops.kernels.write_slots import FIELDS, write_slots

        table = np.empty((len(self._targets), FIELDS), np.int64)
        packed, (_, first_slot, *begins) = pack([table, *self._parts], self._device)
        slots, *values = self._parts
        table[:] = [_fields(*each) for each in zip(self._targets, values, begins, strict=True)]
        packed.numpy()[: table.nbytes] = table.reshape(-1).view(np.uint8)
        whole = packed.to(self._device, non_blocking=True)
        numbers = whole[: first_slot + slots.nbytes].view(torch.int64)
        write_slots(whole, numbers[: table.size].view(table.shape), numbers[first_slot // 8 :])


def _fields(target: Tensor, values: npt.NDArray, begin: int) -> tuple[int, int, int, int, int]:
    """Returns what the kernel is to know of a target whose rows' values begin at this byte."""
    size, stride = min(values.itemsize, 4), target.stride(0) * target.element_size()  # numbers of 8 bytes are two of 4
    assert target.is_contiguous() and target.element_size() == values.itemsize and stride % size == 0
    return target.data_ptr(), values[0].nbytes // size, stride // size, begin, size


@functools.cache
def _numpy_type(dtype: torch.dtype) -> np.dtype:
    return torch.empty(0, dtype=dtype).numpy().dtype
