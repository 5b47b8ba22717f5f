"""An engine directory -> a running LLMEngine on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from vlm.backends.graphs.network import Network
from vlm.backends.threads import set_threads
from vlm.config import BuildConfig, EngineLimits, RuntimeConfig
from vlm.engine.block_manager import BlockManager
from vlm.engine.encoder_engine import EncoderEngine
from vlm.engine.llm_engine import LLMEngine
from vlm.engine.scheduler import Scheduler, SchedulerConfig
from vlm.errors import EngineError, InputError, LimitError, OutOfMemoryError
from vlm.executor.create import paged_encoders, paged_executor, slot_encoders, slot_executor
from vlm.executor.executor import Executor
from vlm.executor.memory import is_out_of_memory
from vlm.registry import catalogs

if TYPE_CHECKING:
    from vlm.artifacts.engine_dir import EngineDir


def resolve_device(name: str) -> torch.device:
    """`auto` is CUDA where there is a device; InputError for one that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {name} is not there: {torch.cuda.device_count()} CUDA devices are visible; use cpu.")
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device is {name!r}; allowed are auto, cpu, cuda and cuda:N.")
    return device


def load_engine(engine: EngineDir, runtime: RuntimeConfig) -> LLMEngine | EncoderEngine:
    """Puts the weights on the device, sizes the cache, and wires scheduler and executor. Of an engine without a decoder
    the encoders alone.

    Raises OutOfMemoryError, EngineError and LimitError.
    """
    build = engine.build
    device = _device_of(build, runtime)
    if device.type == "cpu":
        set_threads(runtime.threads)
    limits = _limits(engine.limits, runtime.max_batch_size)
    if build.backend == "tensorrt":
        from vlm.backends.tensorrt.engine import within_plans

        runtime = within_plans(engine, runtime, device)
    kind = {"device": device, "dtype": getattr(torch, build.dtype)}
    if not engine.generates:
        with _memory_errors(engine, device):
            networks = _networks(engine, runtime, device)
            create = paged_encoders if build.backend == "torch" else slot_encoders
            encoders = create(networks, runtime, **kind)
        return EncoderEngine(catalogs.text_config(engine), encoders, limits, name=engine.family)
    with _memory_errors(engine, device):
        networks = _networks(engine, runtime, device)
        create = paged_executor if build.backend == "torch" else slot_executor
        executor = create(networks, limits, runtime, **kind)
    ends = _ends(engine.generation.get("eos_token_id", executor.config.eos_token_id))
    return LLMEngine(executor, _scheduler(executor, limits, runtime), limits, eos_token_ids=ends)


def _limits(built: EngineLimits, batch_size: int | None) -> EngineLimits:
    """LimitError for more sequences at once than an engine was built for."""
    if batch_size is not None and batch_size > built.max_batch_size:
        raise LimitError(
            f"max_batch_size {batch_size} is more than the engine's {built.max_batch_size}; rebuild with"
            f" --max-batch-size {batch_size}."
        )
    return built.within(max_batch_size=batch_size)


def _scheduler(executor: Executor, limits: EngineLimits, runtime: RuntimeConfig) -> Scheduler:
    config, runner = executor.config, executor.runner
    schedule = SchedulerConfig(
        limits.max_batch_size,
        runner.block_size,
        runtime.burst,
        runtime.max_prefill_tokens,
        config.vocab_size,
        prefix_sharing=runner.shares_prefixes and runtime.prefix_sharing and not config.cross_attention,
    )
    return Scheduler(BlockManager(runner.shape.num_self, runner.shape.num_cross), schedule)


def _ends(ids: int | list[int] | tuple[int, ...] | None) -> tuple[int, ...]:
    """The tokens that end an output; a folder may name none, one or several."""
    ids = () if ids is None else ids if isinstance(ids, list | tuple) else (ids,)
    return tuple(token for token in ids if token >= 0)


def _networks(engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> dict[str, Any]:
    if engine.build.backend == "torch":
        return {role: load_module(engine, role, device) for role in engine.loaded_roles}
    return {name: Network(*parts) for name, parts in _graphs(engine, runtime, device).items()}


def _graphs(engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> dict[str, tuple]:
    if engine.build.backend == "tensorrt":
        from vlm.backends.tensorrt.engine import load_plans

        return load_plans(engine, device)
    from vlm.backends.onnxruntime.engine import load_graphs

    return load_graphs(engine, runtime)


def _device_of(build: BuildConfig, runtime: RuntimeConfig) -> torch.device:
    """InputError for one that the backend does not run on."""
    if build.backend == "tensorrt" and runtime.device == "cpu":
        raise InputError("device is cpu; a tensorrt engine runs on cuda, build for torch or onnxruntime instead.")
    if build.backend != "onnxruntime":
        return resolve_device(runtime.device)
    if runtime.device not in ("auto", "cpu"):
        raise InputError(f"device is {runtime.device}; an onnxruntime engine runs on cpu, build for torch instead.")
    return torch.device("cpu")


def load_module(engine: EngineDir, role: str, device: torch.device) -> nn.Module:
    """One role's network with its weights on `device`; nothing is initialized twice."""
    spec = catalogs.model_spec(engine.roles[role])
    try:
        return spec.loaded(spec.config.from_dict(engine.config(role)), engine.weights(role, device=device), device)
    except RuntimeError as error:
        raise EngineError(
            f"{engine.path}: the {role} weights do not fit the {spec.name} model of this version; rebuild the engine"
            " with vlm build."
        ) from error


@contextmanager
def _memory_errors(engine: EngineDir, device: torch.device) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        size = sum((engine.path / name).stat().st_size for name in engine.manifest.files)
        free = f"{torch.cuda.mem_get_info(device)[0] / 2**30:.1f} GiB" if device.type == "cuda" else "too little memory"
        raise OutOfMemoryError(
            f"the engine needs {size / 2**30:.1f} GiB for weights and its KV cache besides, {device} has {free} free;"
            " lower --max-batch-size, --max-seq-len or --kv-cache-free-gpu-memory-fraction, or give --dtype bfloat16."
        ) from error
