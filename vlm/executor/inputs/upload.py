"""Arrays of the host, copied to the device at once: a copy for each costs more than its bytes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlm.backends.threads import usable_cpus
from vlm.requests.image import Image
from vlm.requests.pixels import Normalization, pixel_values

ALIGNED = 16  # bytes: kernels are compiled for addresses of multiples of it
PAGEABLE_BYTES = 64 << 10  # that CUDA copies out of any memory at once
PINNED_BYTES = 64 << 20  # of a part that is copied while the next one is put together
LARGE_BYTES, COPYING_THREADS = 1 << 20, 8  # of a tensor, from which on threads share a part


def pack(arrays: Items[npt.NDArray], device: torch.device) -> tuple[Tensor, list[int]]:
    """Returns the bytes of the arrays, as they are to be copied to the device, and where each array begins."""
    begins = np.cumsum([0, *(-(-array.nbytes // ALIGNED) * ALIGNED for array in arrays)]).tolist()
    whole = host_bytes(begins[-1], device)
    packed = whole.numpy()
    for begin, array in zip(begins, arrays, strict=False):
        packed[begin : begin + array.nbytes] = array.reshape(-1).view(np.uint8)
    return whole, begins[:-1]


def host_bytes(size: int, device: torch.device) -> Tensor:
    """Returns memory of which a copy to the device holds up nobody: CUDA lets the host wait for all that is under way
    where it copies more than a little out of memory that is not pinned."""
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda" and size > PAGEABLE_BYTES)


def upload(arrays: Items[npt.NDArray], device: torch.device) -> list[Tensor]:
    """Returns the arrays as tensors, without waiting for the device."""
    packed, begins = pack(arrays, device)
    whole = packed.to(device, non_blocking=True)
    return [
        view(whole, begin, array.shape, torch.from_numpy(array).dtype)
        for begin, array in zip(begins, arrays, strict=True)
    ]


def view(whole: Tensor, begin: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns what lies in the bytes of `whole` from `begin` on."""
    size = math.prod(shape) * dtype.itemsize
    return whole[begin : begin + size].view(dtype).view(shape)


def upload_stacked(tensors: list[Tensor], device: torch.device) -> Tensor:
    """Returns tensors of the host, of one shape and type, as one on the device, without waiting for it. A GPU reads
    them out of pinned memory: a copy out of other memory holds up the host, and is several times slower."""
    if device.type != "cuda":
        return torch.stack(tensors).to(device)
    first, size = tensors[0], max(1, PINNED_BYTES // max(1, tensors[0].nbytes))
    result, coming = torch.empty((len(tensors), *first.shape), dtype=first.dtype, device=device), iter(tensors)
    for place in result.split(size):
        pinned = torch.empty(place.shape, dtype=first.dtype, pin_memory=True)
        stack_into(pinned, itertools.islice(coming, len(place)))
        place.copy_(pinned, non_blocking=True)
    return result


def upload_images(images: Items[Image], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Returns pixel values [n, C, H, W] of images of one kind on the device: levels, a quarter of the bytes, are
    normalized there."""
    pixels = upload_stacked([image.pixels for image in images], device)
    return pixel_values(pixels, images[0].normalization).to(dtype)


def kind_of(image: Image) -> tuple[torch.Size, torch.dtype, Normalization | None]:
    """Returns what images have in common that are stacked."""
    return image.pixels.shape, image.pixels.dtype, image.normalization


def stack_into(out: Tensor, tensors: Iterable[Tensor]) -> None:
    """Copies tensors of the host into the rows of `out`, large ones by a few threads, a row each: one does not keep up
    with a GPU that encodes pages of floats. Torch's would wait for each other where cores are busy, thirty times as
    long as one takes."""
    rows, several_large = zip(out.numpy(), tensors, strict=True), len(out) > 1 and out[0].nbytes >= LARGE_BYTES
    for _ in _copying_threads().map(_copy, rows) if several_large else map(_copy, rows):
        pass


def _copy(pair: tuple[npt.NDArray, Tensor]) -> None:
    np.copyto(pair[0], pair[1].numpy())


@functools.cache
def _copying_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(COPYING_THREADS, usable_cpus()), thread_name_prefix="upload")
