"""An engine directory -> a running LLMEngine on a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from vlm.api.model.adapters import load_adapters, read_adapter, with_room
from vlm.backends.installed import backend_of
from vlm.backends.threads import set_threads
from vlm.config import EngineLimits, RuntimeConfig
from vlm.engine.block_manager import BlockManager
from vlm.engine.encoder_engine import EncoderEngine
from vlm.engine.llm_engine import LLMEngine
from vlm.engine.scheduler import Scheduler
from vlm.engine.scheduler_config import SchedulerConfig
from vlm.errors import LimitError, OutOfMemoryError
from vlm.executor.create import create_encoders, create_executor
from vlm.executor.executor import Executor
from vlm.executor.memory import in_words, is_out_of_memory
from vlm.parallel.collectives import ALONE, Ranks
from vlm.registry import catalogs
from vlm.registry.networks import check_ranks, mapping_of

if TYPE_CHECKING:
    from vlm.artifacts.native.engine_dir import EngineDir

BURST = 16  # decode steps at most
# weights that the decode steps of a burst read on the CPU, about: some milliseconds of one core's
BURST_WEIGHTS = 2**24


def load_engine(engine: EngineDir, runtime: RuntimeConfig, ranks: Ranks = ALONE) -> LLMEngine | EncoderEngine:
    """Puts the weights, or a rank's part of them, on the device, sizes the cache, and wires scheduler and executor. Of
    an engine without a decoder the encoders alone.

    Raises OutOfMemoryError, EngineError and LimitError.
    """
    check_ranks(engine, ranks)
    backend = backend_of(engine)
    device = backend.resolve_device(runtime.device)
    if device.type == "cpu":
        set_threads(runtime.threads)
    limits = _limits(engine.limits, runtime.max_batch_size)
    adapters = [read_adapter(engine, folder) for folder in runtime.lora_folders.values()]
    runtime = backend.fit_runtime(engine, with_room(runtime, adapters).on(device.type), device)
    kind = {"device": device, "dtype": getattr(torch, engine.build.dtype)}
    with _memory_errors(engine, device):
        alone = ranks.size == 1
        networks = backend.load(engine, runtime, device) if alone else backend.load_part(engine, runtime, device, ranks)
        cache = load_adapters(networks, adapters, runtime, ranks, **kind)
        if not engine.generates:
            encoders = create_encoders(backend.layout, networks, runtime, ranks=ranks, adapters=cache, **kind)
            return EncoderEngine(catalogs.configs_of(engine).writer, encoders, limits, name=engine.family)
        mapping = mapping_of(engine, ranks.rank)
        kind |= {"mapping": mapping, "ranks": ranks, "adapters": cache}
        executor = create_executor(backend.layout, networks, limits, runtime, **kind)
    ends = _ends(engine.generation.get("eos_token_id", executor.config.eos_token_id))
    return LLMEngine(executor, _scheduler(executor, limits, runtime), limits, eos_token_ids=ends)


def _limits(engine: EngineLimits, batch_size: int | None) -> EngineLimits:
    """Raises LimitError for more sequences at once than an engine was built for."""
    if batch_size is not None and batch_size > engine.max_batch_size:
        raise LimitError(
            f"max_batch_size {batch_size} is more than the engine's {engine.max_batch_size}; rebuild with"
            f" max_batch_size {batch_size}.",
            settings=("max_batch_size",),
        )
    return engine.within(max_batch_size=batch_size)


def _burst(executor: Executor) -> int:
    """Returns the decode steps between two looks of the host. On a CPU a burst hides no work of the host's and holds up
    what arrives: some steps of a model so small that this work would count, and one of any other."""
    if executor.asynchronous:
        return BURST
    config = executor.config
    weights = config.hidden_size * (12 * config.num_layers * config.hidden_size + config.vocab_size)
    return max(1, min(BURST, BURST_WEIGHTS // weights))


def _scheduler(executor: Executor, limits: EngineLimits, runtime: RuntimeConfig) -> Scheduler:
    config, runner = executor.config, executor.runner
    schedule = SchedulerConfig(
        limits.max_batch_size,
        runner.block_size,
        runtime.burst or _burst(executor),
        runtime.max_prefill_tokens,
        config.vocab_size,
        prefix_sharing=runner.shares_prefixes and runtime.prefix_sharing and not config.cross_attention,
        max_adapters=executor.adapters.num_slots,
        batch_invariant=runtime.batch_invariant,
        num_speculative_tokens=runtime.num_speculative_tokens,
        asynchronous=executor.asynchronous,
    )
    return Scheduler(BlockManager(runner.shape.num_self, runner.shape.num_cross), schedule)


def _ends(ids: int | list[int] | tuple[int, ...] | None) -> tuple[int, ...]:
    """Returns the tokens that end an output; a folder may name none, one or several."""
    ids = () if ids is None else ids if isinstance(ids, list | tuple) else (ids,)
    return tuple(token for token in ids if token >= 0)


@contextmanager
def _memory_errors(engine: EngineDir, device: torch.device) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        size = sum((engine.path / name).stat().st_size for name in engine.manifest.files)
        free = in_words(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else "too little memory"
        raise OutOfMemoryError(
            f"the engine needs {in_words(size)} for weights and its KV cache besides, {device} has {free} free;"
            " lower max_batch_size, max_seq_len or kv_cache_free_gpu_memory_fraction, or give dtype bfloat16.",
            settings=("max_batch_size", "max_seq_len", "kv_cache_free_gpu_memory_fraction", "dtype"),
        ) from error
