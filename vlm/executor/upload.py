"""Arrays of the host, copied to the device at once: a copy for each costs more than its bytes."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNED = 16  # bytes: kernels are compiled for addresses of multiples of it


def upload(arrays: Items[npt.NDArray], device: torch.device) -> list[Tensor]:
    """Returns the arrays as tensors, without waiting for the device."""
    begins = np.cumsum([0, *(-(-array.nbytes // ALIGNED) * ALIGNED for array in arrays)]).tolist()
    packed = np.empty(begins[-1], np.uint8)
    spans = [slice(begin, begin + array.nbytes) for begin, array in zip(begins, arrays, strict=False)]
    for span, array in zip(spans, arrays, strict=True):
        packed[span] = array.reshape(-1).view(np.uint8)
    whole = torch.from_numpy(packed).to(device, non_blocking=True)
    return [
        whole[span].view(torch.from_numpy(array).dtype).view(array.shape)
        for span, array in zip(spans, arrays, strict=True)
    ]
