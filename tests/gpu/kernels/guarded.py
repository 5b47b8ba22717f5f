"""Tensors behind which no memory is: a kernel that reads or writes beyond them fails, whatever else is there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

driver = pytest.importorskip("cuda.bindings.driver")


class _Mapped:
    """Holds memory of its own, which ends where what is mapped ends. It stays until the process ends."""

    def __init__(self, size: int, device: int):
        place = driver.CUmemAllocationProp()
        place.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        place.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        place.location.id = device
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        page = _checked(driver.cuMemGetAllocationGranularity(place, least))
        mapped = -(-size // page) * page
        address = int(_checked(driver.cuMemAddressReserve(mapped + page, 0, 0, 0)))  # of which the last stays empty
        handle = _checked(driver.cuMemCreate(mapped, place, 0))
        _checked(driver.cuMemMap(address, mapped, 0, handle, 0))
        access = driver.CUmemAccessDesc()
        access.location = place.location
        access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        _checked(driver.cuMemSetAccess(address, mapped, [access], 1))
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address + mapped - size, False), "version": 3,
        }  # fmt: skip


def guarded(x: Tensor) -> Tensor:
    """Returns a copy of a contiguous tensor on a GPU, behind whose last byte no memory is."""
    size = math.prod(x.shape) * x.element_size()
    assert x.is_contiguous() and size % 16 == 0  # as kernels want rows to be aligned
    copy = torch.as_tensor(_Mapped(size, x.device.index), device=x.device).view(x.dtype).view(x.shape)
    return copy.copy_(x)


def _checked(answer: tuple[Any, ...]) -> Any:
    result, *values = answer
    assert not int(result), result.name
    return values[0] if values else None
