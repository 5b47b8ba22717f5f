"""Which memory and shape a TensorRT plan's inputs and outputs are given: worked out here, without a GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.errors import EngineError, listed

Shape = tuple[int, ...]
Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class PlanPort:
    """An input or output of a plan."""

    name: str
    dtype: torch.dtype
    ranges: tuple[tuple[Shape, Shape], ...] = ()  # of an input: its smallest and largest shape by profile
    memory: str = ""  # of an output: the input that it updates in place

    @property
    def is_input(self) -> bool:
        return bool(self.ranges)

    def takes(self, shape: Shape, profile: int) -> bool:
        """Says whether an input's shape is one that the profile was built for."""
        least, most = self.ranges[profile]
        return len(shape) == len(least) and all(a <= n <= b for a, n, b in zip(least, shape, most, strict=True))


@dataclass(frozen=True)
class Binding:
    """What a context is told of one port."""

    name: str
    address: int
    shape: Shape
    is_input: bool


@dataclass(frozen=True)
class Pass:
    """One run of a plan: the profile, and what is bound, inputs first since shapes of outputs follow from theirs."""

    profile: int
    bindings: tuple[Binding, ...]


def plan_passes(
    ports: Sequence[PlanPort], tensors: Tensors, batched: Collection[str], device: torch.device
) -> list[Pass]:
    """Returns the passes over all sequences: one, or where no profile takes so many at once, as few as do. The tensors
    of `batched` names are cut along the first axis, as views.

    Raises EngineError with every reason why the tensors are not what the plan reads and writes.
    """
    if errors := [reason for port in ports for reason in _errors(port, tensors.get(port.name), device)]:
        raise EngineError(f"the plan cannot run on these tensors: {listed(errors)}.")
    batch = max(len(tensors[name]) for name in batched)
    size = _most_at_once(ports, tensors, batched, batch)
    parts = [_part(tensors, batched, at, size) for at in range(0, batch, size)]
    return [_pass(ports, part) for part in parts]


def _pass(ports: Sequence[PlanPort], tensors: Tensors) -> Pass:
    if (profile := _profile(ports, tensors)) is None:
        raise EngineError(f"the plan cannot run on these tensors: {listed(_oversized(ports, tensors))}.")
    return Pass(profile, tuple(_bindings(ports, tensors)))


def _most_at_once(ports: Sequence[PlanPort], tensors: Tensors, batched: Collection[str], batch: int) -> int:
    size = batch
    while _profile(ports, _part(tensors, batched, 0, size)) is None:
        if size == 1:
            raise EngineError(f"the plan cannot run on these tensors: {listed(_oversized(ports, tensors))}.")
        size = -(-size // 2)
    return size


def _part(tensors: Tensors, batched: Collection[str], first: int, count: int) -> dict[str, Tensor]:
    return {name: x[first : first + count] if name in batched else x for name, x in tensors.items()}


def _profile(ports: Sequence[PlanPort], tensors: Tensors) -> int | None:
    """Returns the first profile that takes all inputs; None: none does."""
    inputs = [port for port in ports if port.is_input]
    fitting = (
        profile
        for profile in range(len(inputs[0].ranges))
        if all(port.takes(tuple(tensors[port.name].shape), profile) for port in inputs)
    )
    return next(fitting, None)


def _bindings(ports: Sequence[PlanPort], tensors: Tensors) -> Iterator[Binding]:
    for port in sorted(ports, key=lambda port: not port.is_input):
        tensor = tensors[port.name]
        if port.memory and tensor.data_ptr() != tensors[port.memory].data_ptr():
            raise EngineError(f"{port.name} is {port.memory} updated in place, but other memory was given for it.")
        yield Binding(port.name, tensor.data_ptr(), tuple(tensor.shape), port.is_input)


def _errors(port: PlanPort, tensor: Tensor | None, device: torch.device) -> Iterator[str]:
    if tensor is None:
        yield f"{port.name} is missing"
        return
    if tensor.device != device:
        yield f"{port.name} is on {tensor.device}, not on {device}"
    if tensor.dtype != port.dtype:
        yield f"{port.name} is {tensor.dtype}, not {port.dtype}"
    if not tensor.is_contiguous():
        yield f"{port.name} is not contiguous"


def _oversized(ports: Sequence[PlanPort], tensors: Tensors) -> list[str]:
    """Names the inputs that the last profile, which takes the most, does not take."""
    return [
        f"{port.name} is {tuple(tensors[port.name].shape)}, the plan takes {port.ranges[-1][0]} to {port.ranges[-1][1]}"
        for port in ports
        if port.is_input and not port.takes(tuple(tensors[port.name].shape), len(port.ranges) - 1)
    ]
