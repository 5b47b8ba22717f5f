"""An engine directory -> a running LLMEngine on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from vlm.backends.graphs.io import CACHED, CROSSED
from vlm.backends.threads import set_threads
from vlm.config import BuildConfig, ModelConfig, RuntimeConfig
from vlm.engine.block_manager import BlockManager
from vlm.engine.encoder_engine import EncoderEngine
from vlm.engine.llm_engine import LLMEngine
from vlm.engine.scheduler import Scheduler, SchedulerConfig
from vlm.errors import EngineError, InputError, LimitError, OutOfMemoryError
from vlm.executor import kv_cache
from vlm.executor.base_executor import Executor
from vlm.executor.batch_state import BatchState
from vlm.executor.encoders import TorchEncoders
from vlm.executor.memory import is_out_of_memory
from vlm.executor.paged_executor import TorchExecutor
from vlm.executor.slot_cache import SlotCache
from vlm.executor.slot_encoders import Network, SlotEncoders
from vlm.executor.slot_executor import SlotExecutor
from vlm.registry import registry

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
    batch_size = runtime.max_batch_size or build.max_batch_size
    if batch_size > build.max_batch_size:
        raise LimitError(
            f"max_batch_size {batch_size} is more than the engine's {build.max_batch_size}; rebuild with"
            f" --max-batch-size {batch_size}."
        )
    if build.backend == "tensorrt":
        from vlm.backends.tensorrt.engine import within_plans

        runtime = within_plans(engine, runtime, device)
    if not engine.generates:
        return _encoder_engine(engine, runtime, device, batch_size)
    with _memory_errors(engine, device):
        make = _torch_executor if build.backend == "torch" else _slot_executor
        executor, shape, block_size = make(engine, runtime, device, batch_size)
    config = executor.config
    blocks = BlockManager(shape.num_self, shape.num_cross)
    schedule = SchedulerConfig(
        batch_size,
        block_size,
        runtime.burst,
        runtime.max_prefill_tokens,
        config.vocab_size,
        prefix_sharing=build.backend == "torch" and runtime.prefix_sharing and not config.cross_attention,
    )
    return LLMEngine(
        config,
        executor,
        Scheduler(blocks, schedule),
        max_batch_size=batch_size,
        max_seq_len=build.max_seq_len,
        max_encoder_len=build.max_encoder_input_len or 0,
        eos_token_ids=_ends(engine.generation.get("eos_token_id", config.eos_token_id)),
    )


def _ends(ids: int | list[int] | tuple[int, ...] | None) -> tuple[int, ...]:
    """The tokens that end an output; a folder may name none, one or several."""
    ids = () if ids is None else ids if isinstance(ids, list | tuple) else (ids,)
    return tuple(token for token in ids if token >= 0)


def _encoder_engine(engine: EngineDir, runtime: RuntimeConfig, device: torch.device, batch_size: int) -> EncoderEngine:
    build, dtype = engine.build, getattr(torch, engine.build.dtype)
    with _memory_errors(engine, device):
        if build.backend == "torch":
            networks = {role: load_module(engine, role, device) for role in engine.loaded_roles}
        else:
            networks = {name: Network(*parts) for name, parts in _graphs(engine, runtime, device).items()}
    made = TorchEncoders if build.backend == "torch" else SlotEncoders
    executor = made(networks.get("visual"), networks.get("encoder"), device, dtype, runtime)
    limits = {"max_batch_size": batch_size, "max_encoder_len": build.max_encoder_input_len or 0}
    return EncoderEngine(registry.text_config(engine), executor, name=engine.family, **limits)


Made = tuple[Executor, kv_cache.CacheShape, int]  # the executor, its blocks and their size


def _torch_executor(engine: EngineDir, runtime: RuntimeConfig, device: torch.device, batch_size: int) -> Made:
    build, dtype = engine.build, getattr(torch, engine.build.dtype)
    modules = {role: load_module(engine, role, device) for role in engine.roles}
    config = modules["decoder"].config
    _share_embedding(modules)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    shape = _plan(config, build, runtime, batch_size, free)
    cache = kv_cache.allocate(config, shape, runtime.block_size, dtype, device)
    state = BatchState(batch_size, build.max_seq_len, shape, device, config.embedding_size, dtype)
    networks = (modules["decoder"], modules.get("visual"), modules.get("encoder"))
    return TorchExecutor(config, *networks, cache, state, runtime), shape, runtime.block_size


def _slot_executor(engine: EngineDir, runtime: RuntimeConfig, device: torch.device, batch_size: int) -> Made:
    """A slot is one block that holds a whole sequence."""
    build, dtype = engine.build, getattr(torch, engine.build.dtype)
    networks = {name: Network(*parts) for name, parts in _graphs(engine, runtime, device).items()}
    config = networks["decoder"].config
    size = max(build.max_seq_len, build.max_encoder_input_len or 0)
    shape = _plan(config, build, replace(runtime, block_size=size, max_kv_blocks=None), batch_size, None)
    state = BatchState(batch_size, build.max_seq_len, shape, device, config.embedding_size, dtype)
    limits = {CACHED: build.max_seq_len, CROSSED: build.max_encoder_input_len or 0}
    cache = SlotCache(networks["decoder"].graph.io, batch_size + 1, limits, device)
    return SlotExecutor(networks, cache, state, runtime), shape, size


def _graphs(engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> dict[str, tuple]:
    if engine.build.backend == "tensorrt":
        from vlm.backends.tensorrt.engine import load_plans

        return load_plans(engine, device)
    from vlm.backends.onnxruntime.engine import load_graphs

    return load_graphs(engine, runtime)


def _plan(
    config: ModelConfig, build: BuildConfig, runtime: RuntimeConfig, batch_size: int, free_bytes: int | None
) -> kv_cache.CacheShape:
    return kv_cache.plan_cache(
        config,
        runtime,
        batch_size=batch_size,
        max_seq_len=build.max_seq_len,
        max_encoder_len=build.max_encoder_input_len or 0,
        dtype=getattr(torch, build.dtype),
        free_bytes=free_bytes,
    )


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
    spec = registry.model_spec(engine.roles[role])
    try:
        return spec.loaded(spec.config.from_dict(engine.config(role)), engine.weights(role, device=device), device)
    except RuntimeError as error:
        raise EngineError(
            f"{engine.path}: the {role} weights do not fit the {spec.name} model of this version; rebuild the engine"
            " with vlm build."
        ) from error


def _share_embedding(modules: dict[str, nn.Module]) -> None:
    """Encoder and decoder mostly have one table of embeddings: it is held once."""
    if "encoder" in modules:
        ours, theirs = modules["encoder"].embedding, modules["decoder"].embedding
        if ours.weight.shape == theirs.weight.shape and torch.equal(ours.weight, theirs.weight):
            ours.weight = theirs.weight


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
