"""Plans on a GPU: torch's memory is bound to them by address, work is queued in step with torch's stream, nothing is
copied and the host does not wait."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlm.backends.graphs.io import BATCH, GraphIO
from vlm.backends.tensorrt.bindings import Binding, Pass, PlanPort, plan_passes
from vlm.backends.tensorrt.library import Library
from vlm.backends.tensorrt.listeners import last, make_logger
from vlm.errors import EngineError, OutOfMemoryError


class PlanContext:
    """One profile of a plan, and what is bound to it; unchanged bindings are not set again."""

    def __init__(self, context: Any, errors: list[str]):
        """`errors`: where the logger puts what TensorRT says."""
        self._context, self._errors = context, errors
        self._bindings: dict[str, Binding] = {}

    def enqueue(self, bindings: Sequence[Binding], stream: int) -> None:
        """Queues a run; `bindings` has the inputs first. Raises EngineError for what TensorRT refuses, OutOfMemoryError
        where it has no memory for it."""
        self._errors.clear()  # of earlier runs
        changes = [binding for binding in bindings if self._bindings.get(binding.name) != binding]
        for binding in changes:
            self._bind(binding)
        if changes:  # an input's shape may be what an unchanged output no longer fits
            self._check_shapes(bindings)
        if not self._context.execute_async_v3(stream):
            kind = OutOfMemoryError if any("out of memory" in text.lower() for text in self._errors) else EngineError
            raise kind(f"TensorRT could not queue the plan's work: {last(self._errors)}")

    def _bind(self, binding: Binding) -> None:
        self._bindings.pop(binding.name, None)
        shape_fits = not binding.is_input or self._context.set_input_shape(binding.name, binding.shape)
        if not (shape_fits and self._context.set_tensor_address(binding.name, binding.address)):
            raise EngineError(f"TensorRT does not take {binding.name} of shape {binding.shape}: {last(self._errors)}")
        self._bindings[binding.name] = binding

    def _check_shapes(self, bindings: Sequence[Binding]) -> None:
        """Raises EngineError for other shapes than the plan's: memory of another size would be written beyond its
        end."""
        for binding in bindings:
            shape = tuple(self._context.get_tensor_shape(binding.name))
            if shape != binding.shape:
                self._bindings.clear()
                raise EngineError(f"the plan's {binding.name} is {shape}, memory is given for {binding.shape}.")


class Queue:
    """A stream for plans, since on the default one TensorRT makes the host wait for the device."""

    def __init__(self, device: torch.device):
        self._device, self._own = device, torch.cuda.Stream(device)

    @contextlib.contextmanager
    def turn(self) -> Iterator[int]:
        """Yields the stream's handle: what is queued on it comes after all that torch was told before, and before the
        rest."""
        torchs = torch.cuda.current_stream(self._device)
        self._own.wait_stream(torchs)
        yield self._own.cuda_stream
        torchs.wait_stream(self._own)


@dataclass(frozen=True)
class BoundPlan:
    """A plan tied to tensors, which live as long as this does. Each call is a run on what the inputs hold then."""

    passes: list[Pass]
    contexts: Sequence[PlanContext]
    inputs: Mapping[str, Tensor]
    outputs: dict[str, Tensor]
    queue: Queue

    def __call__(self) -> dict[str, Tensor]:
        """Queues the run; for what torch's stream does after it, the outputs hold its results."""
        with self.queue.turn() as stream:
            for one in self.passes:
                self.contexts[one.profile].enqueue(one.bindings, stream)
        return self.outputs


class PlanGraph:
    """A plan on a CUDA device, ready to run. Its profiles share their working memory: runs come one after the other."""

    def __init__(self, plan_file: Path, io: GraphIO, library: Library, device: torch.device):
        """Raises EngineError for a plan that the library cannot load; `check_runnable` says why before."""
        self.io, self.device, self._errors = io, device, []
        with torch.cuda.device(device):
            self._logger = make_logger(library.module, self._errors)
            self._runtime = library.module.Runtime(self._logger)
            self._engine = self._load(plan_file)
            self._ports, self._queue = list(ports_of(self._engine, library.module)), Queue(device)
            self._memory = torch.empty(max(self._engine.device_memory_size_v2, 1), dtype=torch.uint8, device=device)
            self._contexts = [self._context(library.module, i) for i in range(self._engine.num_optimization_profiles)]

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> BoundPlan:
        """Ties tensors to the graph's names; an output that is not given is allocated. Where no profile takes so many
        sequences, a run is several passes over views of the same memory."""
        results = {**self._allocated(inputs, outputs), **outputs}
        batched = [port.name for port in (*self.io.inputs, *self.io.outputs) if port.shape[0] == BATCH]
        passes = plan_passes(self._ports, {**inputs, **results}, batched, self.device)
        return BoundPlan(passes, self._contexts, dict(inputs), results, self._queue)

    def _allocated(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        pairs = [pair for port in self.io.inputs for pair in zip(port.shape, inputs[port.name].shape, strict=True)]
        sizes = {name: size for name, size in pairs if isinstance(name, str)}
        lacking = [port for port in self.io.outputs if port.name not in outputs]
        return {p.name: torch.empty(p.sized(**sizes), dtype=p.dtype, device=self.device) for p in lacking}

    def _load(self, plan_file: Path) -> Any:
        with plan_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise EngineError(f"TensorRT cannot load {plan_file}: {last(self._errors)}")
        return engine

    def _context(self, trt: Any, profile: int) -> PlanContext:
        context = self._engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        stream = torch.cuda.current_stream(self.device)
        if context is None or not context.set_optimization_profile_async(profile, stream.cuda_stream):
            raise EngineError(f"TensorRT cannot prepare the plan's profile {profile}: {last(self._errors)}")
        stream.synchronize()  # runs may come on another stream than this one
        context.set_device_memory(self._memory.data_ptr(), self._memory.numel())  # torch aligns to 512 bytes
        return PlanContext(context, self._errors)


def ports_of(engine: Any, trt: Any) -> Iterator[PlanPort]:
    """Yields the inputs and outputs of a deserialized engine."""
    names = ("float32", "float16", "bfloat16", "int64", "int32", "bool")
    types = {getattr(trt, name): getattr(torch, name) for name in names}
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        dtype = types[engine.get_tensor_dtype(name)]
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            yield PlanPort(name, dtype, ranges=tuple(_ranges(engine, name)))
        else:
            yield PlanPort(name, dtype, memory=engine.get_aliased_input_tensor(name) or "")


def _ranges(engine: Any, name: str) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for profile in range(engine.num_optimization_profiles):
        least, _, most = engine.get_tensor_profile_shape(name, profile)
        yield tuple(least), tuple(most)
