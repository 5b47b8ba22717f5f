"""Which memory and shape a TensorRT plan's inputs and outputs are given: worked out here, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.errors import EngineError, listed

Shape = tuple[int, ...]
CACHES = ("self_k_", "self_v_", "cross_k_", "cross_v_")


@dataclass(frozen=True)
class Port:
    """An input or output of a plan."""

    name: str
    dtype: torch.dtype
    ranges: tuple[tuple[Shape, Shape], ...] = ()  # of an input: its smallest and largest shape by profile
    memory: str = ""  # of an output: the input that it updates in place

    @property
    def is_input(self) -> bool:
        return bool(self.ranges)

    @property
    def largest(self) -> Shape:
        """Over all profiles."""
        return tuple(max(sizes) for sizes in zip(*(most for _, most in self.ranges), strict=True))


@dataclass(frozen=True)
class Binding:
    """What a context is told of one port."""

    name: str
    address: int
    shape: Shape
    is_input: bool


def bindings(ports: Sequence[Port], tensors: Mapping[str, Tensor], profile: int, device: torch.device) -> list[Binding]:
    """Inputs first, since the shapes of outputs follow from theirs. An output in place takes its input's memory.

    Raises EngineError with every reason why the tensors are not what the plan reads and writes.
    """
    needed = [(port, tensors.get(port.memory or port.name)) for port in sorted(ports, key=lambda p: not p.is_input)]
    if wrong := [reason for port, tensor in needed for reason in _misfits(port, tensor, profile, device)]:
        raise EngineError(f"the plan cannot run on these tensors: {listed(wrong)}.")
    return [Binding(port.name, t.data_ptr(), tuple(t.shape), port.is_input) for port, t in needed if t is not None]


def _misfits(port: Port, tensor: Tensor | None, profile: int, device: torch.device) -> Iterator[str]:
    if tensor is None:
        yield f"{port.name} is missing"
        return
    if tensor.device != device:
        yield f"{port.name} is on {tensor.device}, not on {device}"
    if tensor.dtype != port.dtype:
        yield f"{port.name} is {tensor.dtype}, not {port.dtype}"
    if not tensor.is_contiguous():
        yield f"{port.name} is not contiguous"
    if port.is_input and not _within(tuple(tensor.shape), *port.ranges[profile]):
        least, most = port.ranges[profile]
        yield f"{port.name} is {tuple(tensor.shape)}, the plan takes {least} to {most}"


def _within(shape: Shape, least: Shape, most: Shape) -> bool:
    return len(shape) == len(least) and all(a <= n <= b for a, n, b in zip(least, shape, most, strict=True))


def allocate_caches(ports: Sequence[Port], device: torch.device) -> dict[str, Tensor]:
    """Zeros for all caches that a decoder's plan takes: [slots, heads, rows, head_dim] each, as many slots as the plan
    takes sequences."""
    held = [port for port in ports if port.is_input and port.name.startswith(CACHES)]
    return {port.name: torch.zeros(port.largest, dtype=port.dtype, device=device) for port in held}


def slots_of(caches: Mapping[str, Tensor], first: int, count: int) -> dict[str, Tensor]:
    """The caches of `count` neighbouring slots, not copied: what a plan writes there is written into the slots."""
    return {name: cache[first : first + count] for name, cache in caches.items()}
