"""Loaded networks -> an executor, or their encoders alone, with all device memory that they work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from vlm.backends.base import Layout
from vlm.backends.graphs.io import CACHED, CROSSED
from vlm.backends.graphs.network import Network
from vlm.config import EngineLimits, ModelConfig, RuntimeConfig
from vlm.errors import ConfigError
from vlm.executor import kv_cache
from vlm.executor.adapters import AdapterCache
from vlm.executor.encoding.encoders import EncoderNetworks, Encoders
from vlm.executor.encoding.torch_encoders import TorchEncoders
from vlm.executor.executor import Executor
from vlm.executor.graph_pool import GraphPool
from vlm.executor.kv_cache import CacheShape
from vlm.executor.paged.runner import PagedRunner
from vlm.executor.sampling.logits_recorder import LogitsRecorder
from vlm.executor.sampling.sampler import Sampler
from vlm.executor.slots.cache import SlotCache
from vlm.executor.slots.encoders import SlotEncoders
from vlm.executor.slots.runner import SlotRunner
from vlm.executor.state.batch_state import BatchState
from vlm.parallel.collectives import Ranks
from vlm.parallel.mapping import Mapping as RankMapping

CACHE_TYPES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


def create_executor(
    layout: Layout,
    networks: Mapping[str, Any],
    limits: EngineLimits,
    runtime: RuntimeConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    mapping: RankMapping,
    ranks: Ranks,
    adapters: AdapterCache,
) -> Executor:
    """Returns what runs networks, or one rank's part of them, as Backend.load returns them for a layout: caches have
    as many blocks on all ranks. Raises OutOfMemoryError."""
    kind = {"device": device, "dtype": dtype}
    encoders = create_encoders(layout, networks, runtime, ranks=ranks, adapters=adapters, **kind)
    create = {Layout.PAGED: _paged_runner, Layout.SLOTS: _slot_runner}[layout]
    runner = create(networks, limits, runtime, encoders=encoders.networks, mapping=mapping, ranks=ranks)
    config, sampler = networks["decoder"].config, runner.sampler
    return Executor(config, runner, encoders, sampler, batch_invariant=runtime.batch_invariant)


def create_encoders(
    layout: Layout,
    networks: Mapping[str, Any],
    runtime: RuntimeConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
    ranks: Ranks,
    adapters: AdapterCache,
) -> Encoders:
    """Returns what runs the encoders of networks as Backend.load returns them for a layout."""
    options = {"visual": networks.get("visual"), "encoder": networks.get("encoder"), "device": device, "dtype": dtype}
    if layout is Layout.SLOTS:
        return Encoders(SlotEncoders(**options), runtime, ranks)
    graphs, most = _graphs(runtime, device, ranks), runtime.max_encoder_batch_size
    return Encoders(TorchEncoders(**options, max_batch_size=most, graphs=graphs, adapters=adapters), runtime, ranks)


def _paged_runner(
    networks: Mapping[str, Any],
    limits: EngineLimits,
    runtime: RuntimeConfig,
    *,
    encoders: TorchEncoders,
    mapping: RankMapping,
    ranks: Ranks,
) -> PagedRunner:
    """Returns what runs modules, by role, over a paged cache of what memory is left."""
    decoder, device, dtype = networks["decoder"], encoders.device, encoders.dtype
    _share_embedding(networks)
    free = _free_bytes(device) if device.type == "cuda" else None
    kept = CACHE_TYPES[runtime.kv_cache_dtype] if runtime.kv_cache_dtype else dtype
    keeps_kv_alone = runtime.batch_invariant or kept != dtype
    rows = {"block_size": runtime.block_size, "dtype": dtype, "device": device}
    hidden_size = 0 if keeps_kv_alone else kv_cache.hidden_size_of(decoder, limits, **rows)
    sizes = {"dtype": kept, "mapping": mapping, "hidden_size": hidden_size}
    shape = kv_cache.plan_cache(decoder.config, runtime, limits=limits, free_bytes=free, **sizes)
    shape = replace(shape, num_self=ranks.hosts.minimum(shape.num_self), num_cross=ranks.hosts.minimum(shape.num_cross))
    cache = kv_cache.allocate(decoder.config, shape, runtime.block_size, device=device, **sizes)
    max_source_len = limits.max_encoder_input_len if runtime.num_speculative_tokens and encoders.encoder else 0
    sampler = _sampler(decoder.config, limits, shape, encoders, max_source_len)
    # a step waits for the last of its kernels: images beside it take what room it leaves
    graphs = _graphs(runtime, device, ranks, priority=-1)
    if graphs is not None:
        encoders.adapters.on_growth = graphs.clear
    return PagedRunner(
        decoder, encoders.encoder, cache=cache, shape=shape, sampler=sampler, graphs=graphs, num_stages=mapping.pp,
        maximum=lambda value: -ranks.hosts.minimum(-value),
    )  # fmt: skip


def _free_bytes(device: torch.device) -> int:
    """Returns the bytes of a GPU that nothing takes, those of weights that networks have given up among them."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def _graphs(runtime: RuntimeConfig, device: torch.device, ranks: Ranks, *, priority: int = 0) -> GraphPool | None:
    """Returns a pool for passes that follow each other: images are encoded beside decoding, in memory of their own."""
    if not runtime.cuda_graphs or device.type != "cuda":
        return None
    graphs = GraphPool(device, priority=priority)
    ranks.hold(graphs)
    return graphs


def _slot_runner(
    networks: Mapping[str, Network[Any]],
    limits: EngineLimits,
    runtime: RuntimeConfig,
    *,
    encoders: SlotEncoders,
    mapping: RankMapping,
    ranks: Ranks,
) -> SlotRunner:
    """Returns what runs compiled graphs, by name, over linear caches: a slot is one block that holds a whole
    sequence."""
    if runtime.kv_cache_dtype is not None:
        raise ConfigError(
            f"kv_cache_dtype is {runtime.kv_cache_dtype}, which is for backend torch: a compiled engine keeps keys and"
            " values as it computes; leave kv_cache_dtype out.",
            settings=("kv_cache_dtype",),
        )
    if runtime.num_speculative_tokens:
        raise ConfigError(
            f"num_speculative_tokens is {runtime.num_speculative_tokens}, which is for backend torch: a compiled engine"
            " takes a token a step; leave num_speculative_tokens out.",
            settings=("num_speculative_tokens",),
        )
    decoder, size = networks["decoder"], max(limits.max_seq_len, limits.max_encoder_input_len)
    one_block = replace(runtime, block_size=size, max_kv_blocks=None)
    dtype = encoders.dtype
    shape = kv_cache.plan_cache(decoder.config, one_block, limits=limits, dtype=dtype, free_bytes=None, mapping=mapping)
    rows = {CACHED: limits.max_seq_len, CROSSED: limits.max_encoder_input_len}
    cache = SlotCache(decoder.graph.io, limits.max_batch_size + 1, rows, encoders.device)
    sampler = _sampler(decoder.config, limits, shape, encoders)
    return SlotRunner(
        decoder, encoders.encoder, networks.get("cross"), cache=cache, shape=shape, block_size=size, sampler=sampler
    )


def _sampler(
    config: ModelConfig, limits: EngineLimits, shape: CacheShape, encoders: EncoderNetworks, max_source_len: int = 0
) -> Sampler:
    """Returns what samples for the slots of a new batch state; `max_source_len` as it has it."""
    device, size = encoders.device, limits.max_batch_size
    options = {"dtype": encoders.dtype, "adapters": encoders.adapters, "max_source_len": max_source_len}
    options["position_axes"] = config.position_axes
    state = BatchState(size, limits.max_seq_len, shape, device, config.embedding_size, **options)
    return Sampler(state, LogitsRecorder(size + 1, device))


def _share_embedding(modules: Mapping[str, Any]) -> None:
    """Lets encoder and decoder share the table of embeddings that they mostly have in common: it is held once."""
    if "encoder" in modules:
        ours, theirs = modules["encoder"].embedding, modules["decoder"].embedding
        if ours.weight.shape == theirs.weight.shape and torch.equal(ours.weight, theirs.weight):
            ours.weight = theirs.weight
