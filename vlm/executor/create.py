"""Loaded networks -> an executor, or their encoders alone, with all device memory that they work on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vlm.backends.base import Layout
from vlm.backends.graphs.io import CACHED, CROSSED
from vlm.backends.graphs.network import Network
from vlm.config import EngineLimits, RuntimeConfig
from vlm.executor import kv_cache
from vlm.executor.batch_state import BatchState
from vlm.executor.encoders import Encoders, TorchEncoders
from vlm.executor.executor import Executor
from vlm.executor.graph_pool import GraphPool
from vlm.executor.kv_cache import CacheShape
from vlm.executor.logits_recorder import LogitsRecorder
from vlm.executor.paged_runner import PagedRunner
from vlm.executor.sampler import Sampler
from vlm.executor.slot_cache import SlotCache
from vlm.executor.slot_encoders import SlotEncoders
from vlm.executor.slot_runner import SlotRunner


def create_executor(
    layout: Layout, networks: Mapping[str, Any], limits: EngineLimits, runtime: RuntimeConfig, **kind: Any
) -> Executor:
    """Returns what runs networks as Backend.load returns them for a layout. `kind`: device and dtype. Raises
    OutOfMemoryError."""
    create = {Layout.PAGED: _paged_executor, Layout.SLOTS: _slot_executor}[layout]
    return create(networks, limits, runtime, **kind)


def create_encoders(layout: Layout, networks: Mapping[str, Any], runtime: RuntimeConfig, **kind: Any) -> Encoders:
    """Returns what runs the encoders of networks as Backend.load returns them for a layout."""
    create = {Layout.PAGED: _paged_encoders, Layout.SLOTS: _slot_encoders}[layout]
    return create(networks, runtime, **kind)


def _paged_executor(
    networks: Mapping[str, nn.Module],
    limits: EngineLimits,
    runtime: RuntimeConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Executor:
    """Returns what runs modules, by role, over a paged cache of what memory is left. Raises OutOfMemoryError."""
    decoder, config = networks["decoder"], networks["decoder"].config
    _share_embedding(networks)
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None
    shape = kv_cache.plan_cache(config, runtime, limits=limits, dtype=dtype, free_bytes=free)
    cache = kv_cache.allocate(config, shape, runtime.block_size, dtype, device)
    sampler = _sampler(config, limits, shape, device=device, dtype=dtype)
    encoders = _paged_encoders(networks, runtime, device=device, dtype=dtype)
    runner = PagedRunner(
        decoder, encoders.encoder, cache=cache, shape=shape, sampler=sampler, graphs=encoders.graphs
    )  # fmt: skip
    return Executor(config, runner, encoders, sampler)


def _paged_encoders(
    networks: Mapping[str, nn.Module], runtime: RuntimeConfig, *, device: torch.device, dtype: torch.dtype
) -> TorchEncoders:
    """Returns what runs the modules of encoders, which are CUDA graphs on CUDA."""
    graphs = GraphPool(device) if runtime.cuda_graphs and device.type == "cuda" else None
    return TorchEncoders(networks.get("visual"), networks.get("encoder"), device, dtype, runtime, graphs)


def _slot_executor(
    networks: Mapping[str, Network],
    limits: EngineLimits,
    runtime: RuntimeConfig,
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> Executor:
    """Returns what runs compiled graphs, by name, over linear caches: a slot is one block that holds a whole
    sequence."""
    decoder, config = networks["decoder"], networks["decoder"].config
    size = max(limits.max_seq_len, limits.max_encoder_input_len)
    one_block = replace(runtime, block_size=size, max_kv_blocks=None)
    shape = kv_cache.plan_cache(config, one_block, limits=limits, dtype=dtype, free_bytes=None)
    rows = {CACHED: limits.max_seq_len, CROSSED: limits.max_encoder_input_len}
    cache = SlotCache(decoder.graph.io, limits.max_batch_size + 1, rows, device)
    sampler = _sampler(config, limits, shape, device=device, dtype=dtype)
    encoders = _slot_encoders(networks, runtime, device=device, dtype=dtype)
    runner = SlotRunner(
        decoder, encoders.encoder, networks.get("cross"), cache=cache, shape=shape, block_size=size, sampler=sampler
    )
    return Executor(config, runner, encoders, sampler)


def _slot_encoders(
    networks: Mapping[str, Network], runtime: RuntimeConfig, *, device: torch.device, dtype: torch.dtype
) -> Encoders:
    """Returns what runs the compiled graphs of encoders."""
    return SlotEncoders(networks.get("visual"), networks.get("encoder"), device, dtype, runtime)


def _sampler(
    config: Any, limits: EngineLimits, shape: CacheShape, *, device: torch.device, dtype: torch.dtype
) -> Sampler:
    state = BatchState(limits.max_batch_size, limits.max_seq_len, shape, device, config.embedding_size, dtype)
    return Sampler(state, LogitsRecorder(limits.max_batch_size + 1, device))


def _share_embedding(modules: Mapping[str, nn.Module]) -> None:
    """Encoder and decoder mostly have one table of embeddings: it is held once."""
    if "encoder" in modules:
        ours, theirs = modules["encoder"].embedding, modules["decoder"].embedding
        if ours.weight.shape == theirs.weight.shape and torch.equal(ours.weight, theirs.weight):
            ours.weight = theirs.weight
