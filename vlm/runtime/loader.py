"""An engine directory -> a running LLMEngine on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from vlm import registry
from vlm.config import RuntimeConfig
from vlm.errors import EngineError, InputError, LimitError, OutOfMemoryError
from vlm.runtime import kv_cache
from vlm.runtime.batch_state import BatchState
from vlm.runtime.block_manager import BlockManager
from vlm.runtime.executor import TorchExecutor
from vlm.runtime.llm_engine import LLMEngine
from vlm.runtime.scheduler import Scheduler, SchedulerConfig

if TYPE_CHECKING:
    from vlm.compile.engine_dir import EngineDir


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


def load_engine(engine: EngineDir, runtime: RuntimeConfig) -> LLMEngine:
    """Puts the weights on the device, sizes the cache, and wires scheduler and executor.

    Raises OutOfMemoryError, EngineError and LimitError.
    """
    device = resolve_device(runtime.device)
    build, dtype = engine.build, getattr(torch, engine.build.dtype)
    batch_size = runtime.max_batch_size or build.max_batch_size
    if batch_size > build.max_batch_size:
        raise LimitError(
            f"max_batch_size {batch_size} is more than the engine's {build.max_batch_size}; rebuild with"
            f" --max-batch-size {batch_size}."
        )
    with _memory_errors(engine, device):
        modules = {role: load_module(engine, role, device) for role in engine.roles}
        config = modules["decoder"].config
        _share_embedding(modules)
        shape = kv_cache.plan_cache(
            config,
            runtime,
            batch_size=batch_size,
            max_seq_len=build.max_seq_len,
            max_encoder_len=build.max_encoder_input_len or 0,
            dtype=dtype,
            free_bytes=torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None,
        )
        cache = kv_cache.allocate(config, shape, runtime.block_size, dtype, device)
        state = BatchState(batch_size, build.max_seq_len, shape, device, config.embedding_size, dtype)
    executor = TorchExecutor(
        config,
        modules["decoder"],
        modules.get("visual"),
        modules.get("encoder"),
        cache,
        state,
        max_encoder_batch_size=runtime.max_encoder_batch_size,
        max_encoder_tokens=runtime.max_encoder_tokens,
        encoder_cache_size=runtime.encoder_cache_size,
        cuda_graphs=runtime.cuda_graphs,
    )
    blocks = BlockManager(shape.num_self, shape.num_cross)
    schedule = SchedulerConfig(
        batch_size,
        runtime.block_size,
        runtime.burst,
        runtime.max_prefill_tokens,
        config.vocab_size,
        prefix_sharing=runtime.prefix_sharing and not config.cross_attention,
    )
    eos = engine.generation.get("eos_token_id", config.eos_token_id)
    return LLMEngine(
        config,
        executor,
        Scheduler(blocks, schedule),
        max_batch_size=batch_size,
        max_seq_len=build.max_seq_len,
        max_encoder_len=build.max_encoder_input_len or 0,
        num_features=modules["visual"].config.num_features if "visual" in modules else None,
        eos_token_ids=tuple(eos) if isinstance(eos, list | tuple) else (eos,),
    )


def load_module(engine: EngineDir, role: str, device: torch.device) -> nn.Module:
    """One role's network with its weights on `device`; nothing is initialized twice."""
    spec = registry.model_spec(engine.roles[role])
    config = spec.config.from_dict(engine.config(role))
    with torch.device("meta"):
        module = spec.module(config)
    weights = engine.weights(role, device=device)
    try:
        module.load_state_dict(weights, strict=True, assign=True)
    except RuntimeError as error:
        raise EngineError(
            f"{engine.path}: the {role} weights do not fit the {spec.name} model of this version; rebuild the engine"
            " with vlm build."
        ) from error
    if hasattr(module, "init_buffers"):
        module.init_buffers(device)
    return module.eval().requires_grad_(False)


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
    except (torch.OutOfMemoryError, MemoryError) as error:
        size = sum((engine.path / name).stat().st_size for name in engine.manifest.files)
        free = f"{torch.cuda.mem_get_info(device)[0] / 2**30:.1f} GiB" if device.type == "cuda" else "too little memory"
        raise OutOfMemoryError(
            f"the engine needs {size / 2**30:.1f} GiB for weights and its KV cache besides, {device} has {free} free;"
            " lower --max-batch-size, --max-seq-len or kv_cache_free_gpu_memory_fraction, or build with"
            " --dtype bfloat16."
        ) from error
