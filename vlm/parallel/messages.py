"""What hosts tell each other: Python's objects, whose tensors go as their own bytes alone."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch
from torch import Tensor


def packed(value: Any) -> memoryview:
    """Returns an object as bytes."""
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getbuffer()


def unpacked(content: bytes | bytearray | memoryview) -> Any:
    """Returns the object of bytes that a process of our own has packed."""
    return pickle.loads(content)


class _Pickler(pickle.Pickler):
    """Packs the values of a tensor of the host: torch packs all of the memory that it is a part of, a batch's for one
    image of it."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Tensor) and obj.device.type == "cpu":
            return _tensor, (obj.detach().contiguous().view(-1).view(torch.uint8).numpy(), obj.dtype, obj.shape)
        return NotImplemented


def _tensor(values: np.ndarray, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    return torch.from_numpy(values).view(dtype).view(shape)
