"""The adapters that an engine is loaded with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from vlm.backends.base import Layout
from vlm.backends.installed import backend_of
from vlm.config import RuntimeConfig
from vlm.convert.adapters.placing import read_lora
from vlm.errors import InputError, LimitError, counted
from vlm.layers.adapters.lora import Layers
from vlm.registry import catalogs
from vlm.registry.lora_layers import put_lora

if TYPE_CHECKING:
    from vlm.artifacts.engine_dir import EngineDir

Adapter = Mapping[str, Layers]  # by role


def read_adapters(engine: EngineDir, runtime: RuntimeConfig) -> list[Adapter]:
    """Returns what each adapter of a runtime adds to an engine's networks, in the order of their numbers. Raises
    InputError for an engine that takes none; ConfigError and CheckpointError as read_lora."""
    if not runtime.lora:
        return []
    if (backend := backend_of(engine)).layout is not Layout.PAGED:
        raise InputError(
            f"adapters are for --backend torch, {backend.name} runs compiled graphs; merge one into its model with"
            " vlm convert --merge-lora and build that."
        )
    spec, configs = catalogs.family(engine.family), catalogs.configs_of(engine)
    return [read_lora(folder, spec, configs) for folder in runtime.lora_folders.values()]


def with_room(runtime: RuntimeConfig, adapters: list[Adapter]) -> RuntimeConfig:
    """Returns the runtime with room for its adapters, none where there is none. Raises LimitError where it says for
    how many, or of which rank, and there are more."""
    if not adapters:
        return replace(runtime, max_loras=None, max_lora_rank=None)
    ranks = {name: _rank(adapter) for name, adapter in zip(runtime.lora_folders, adapters, strict=True)}
    count, rank = runtime.max_loras or len(ranks), runtime.max_lora_rank or max(ranks.values())
    if len(ranks) > count:
        raise LimitError(
            f"there is room for {counted(count, 'adapter')}, {len(ranks)} are named", f"give --max-loras {len(ranks)}"
        )
    for name, own in ranks.items():
        if own > rank:
            raise LimitError(
                f"there is room for adapters of rank {rank}, {name} has {own}", f"give --max-lora-rank {own}"
            )
    return replace(runtime, max_loras=count, max_lora_rank=rank)


def _rank(adapter: Adapter) -> int:
    return max((each.rank for layers in adapter.values() for added in layers.values() for each in added), default=1)


def put_adapters(
    networks: Mapping[str, Any], adapters: list[Adapter], *, device: torch.device, dtype: torch.dtype
) -> None:
    """Gives each network what adapters add to it."""
    for number, adapter in enumerate(adapters):
        for role in adapter.keys() & networks.keys():
            put_lora(networks[role], number, adapter[role], device=device, dtype=dtype)
