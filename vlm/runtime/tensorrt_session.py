"""Runs a TensorRT plan on torch's tensors: their addresses are bound, work is queued on torch's stream, nothing is
copied and the host does not wait."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlm.compile.trt_library import Library
from vlm.compile.trt_listeners import make_logger
from vlm.compile.trt_profiles import DECODE, PREFILL
from vlm.errors import EngineError
from vlm.runtime.plan_bindings import Binding, Port, allocate_caches, bindings, slots_of


class PlanContext:
    """One profile of a plan, and what is bound to it; unchanged bindings are not set again."""

    def __init__(self, context: Any):
        self._context = context
        self._bound: dict[str, Binding] = {}

    def enqueue(self, wanted: Sequence[Binding], stream: int) -> None:
        """`wanted` has the inputs first. Raises EngineError for what TensorRT refuses."""
        changed = [binding for binding in wanted if self._bound.get(binding.name) != binding]
        for binding in changed:
            self._bind(binding)
        if changed:  # an input's shape may be what an unchanged output no longer fits
            self._check_outputs(wanted)
        if not self._context.execute_async_v3(stream):
            raise EngineError("TensorRT could not queue the plan's work; `vlm --debug` shows its log.")

    def _bind(self, binding: Binding) -> None:
        self._bound.pop(binding.name, None)
        done = not binding.is_input or self._context.set_input_shape(binding.name, binding.shape)
        if not (done and self._context.set_tensor_address(binding.name, binding.address)):
            raise EngineError(f"TensorRT does not take {binding.name} of shape {binding.shape}.")
        self._bound[binding.name] = binding

    def _check_outputs(self, wanted: Sequence[Binding]) -> None:
        """Memory of another size would be written beyond its end."""
        for binding in wanted:
            shape = tuple(self._context.get_tensor_shape(binding.name))
            if shape != binding.shape:
                self._bound.clear()
                raise EngineError(f"the plan's {binding.name} is {shape}, memory is given for {binding.shape}.")


class PlanSession:
    """A plan on a CUDA device. All its runs belong on one stream: the profiles share one working memory."""

    def __init__(self, plan_file: Path, library: Library, device: torch.device):
        """Raises EngineError for a plan that the library cannot load; `check_runnable` says why before."""
        self.device, self._errors = device, []
        with torch.cuda.device(device):
            self._logger = make_logger(library.module, self._errors)
            self._runtime = library.module.Runtime(self._logger)
            self._engine = self._load(plan_file)
            self.ports = list(ports_of(self._engine, library.module))
            self._contexts = [self._context(library.module, i) for i in range(self._engine.num_optimization_profiles)]

    def run(self, tensors: Mapping[str, Tensor], profile: int = 0) -> None:
        """Queues the plan: reads the inputs among `tensors`, writes the outputs among them. Outputs in place need none.

        Tensors must live until the stream has come past this; torch's allocator sees to that on its own stream.
        """
        wanted = bindings(self.ports, tensors, profile, self.device)
        self._contexts[profile].enqueue(wanted, torch.cuda.current_stream(self.device).cuda_stream)

    def _load(self, plan_file: Path) -> Any:
        with plan_file.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            engine = self._runtime.deserialize_cuda_engine(content)
        if engine is None:
            raise EngineError(f"TensorRT cannot load {plan_file}: {'; '.join(self._errors[-1:]) or 'no reason given'}")
        size = max(engine.device_memory_size_v2, 1)
        self._memory = torch.empty(size, dtype=torch.uint8, device=self.device)  # torch aligns to 512 bytes
        return engine

    def _context(self, trt: Any, profile: int) -> PlanContext:
        context = self._engine.create_execution_context(trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        stream = torch.cuda.current_stream(self.device)
        if context is None or not context.set_optimization_profile_async(profile, stream.cuda_stream):
            raise EngineError(f"TensorRT cannot prepare the plan: {'; '.join(self._errors[-1:]) or 'no reason given'}")
        stream.synchronize()  # runs may come on another stream than this one
        context.set_device_memory(self._memory.data_ptr(), self._memory.numel())
        return PlanContext(context)


def ports_of(engine: Any, trt: Any) -> Iterator[Port]:
    """The inputs and outputs of a deserialized engine."""
    types = {
        trt.float32: torch.float32,
        trt.float16: torch.float16,
        trt.bfloat16: torch.bfloat16,
        trt.int64: torch.int64,
        trt.int32: torch.int32,
        trt.bool: torch.bool,
    }
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        dtype = types[engine.get_tensor_dtype(name)]
        if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT:
            yield Port(name, dtype, ranges=tuple(_ranges(engine, name)))
        else:
            yield Port(name, dtype, memory=engine.get_aliased_input_tensor(name) or "")


def _ranges(engine: Any, name: str) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for profile in range(engine.num_optimization_profiles):
        least, _, most = engine.get_tensor_profile_shape(name, profile)
        yield tuple(least), tuple(most)


class PlanDecoder:
    """A decoder's plan with the caches of all its slots, a slot a sequence."""

    def __init__(self, session: PlanSession):
        self.session = session
        self.caches = allocate_caches(session.ports, session.device)
        self.slots = len(next(iter(self.caches.values())))

    def run(self, first: int, inputs: Mapping[str, Tensor], logits: Tensor) -> None:
        """Queues the spans `inputs["token_ids"]` [B, S] of the sequences in the slots `first` to `first + B`: their
        keys and values go straight into these slots, the last tokens' logits into `logits` [B, vocab]."""
        count, span = inputs["token_ids"].shape
        tensors = {**slots_of(self.caches, first, count), **inputs, "logits": logits}
        self.session.run(tensors, DECODE if span == 1 else PREFILL)
