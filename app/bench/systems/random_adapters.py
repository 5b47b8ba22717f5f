"""Adapters of random values, of which each input of a batch has the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from vlm.artifacts.native.engine_dir import EngineDir
from vlm.layers.adapters.base import Layers
from vlm.layers.adapters.lora import LoraWeights
from vlm.layers.linear import Linear
from vlm.registry.catalogs import configs_of, family, model_spec
from vlm_app.core.backend_names import MeasuredName

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline

ROLES = ("encoder", "decoder")
CHANGED = ("q", "v")  # queries and values, which PEFT changes where it is not told what else
SIZE = 0.01  # of the values


def load_random_adapters(pipeline: Pipeline, engine: EngineDir, name: MeasuredName, *, seed: int) -> None:
    """Loads as many adapters as a name says, of the rank that it says."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(name.max_loras or 0):
        assert name.max_lora_rank is not None
        pipeline.adapters.load(str(number), _random_adapter(engine, name.max_lora_rank, generator))


def with_adapters(inputs: list[dict[str, Any]], pipeline: Pipeline) -> list[dict[str, Any]]:
    """Gives each input an adapter, one after the other, where there are any."""
    names = list(pipeline.adapters)
    return [x | {"lora": names[i % len(names)]} for i, x in enumerate(inputs)] if names else inputs


def _random_adapter(engine: EngineDir, rank: int, generator: torch.Generator) -> Mapping[str, Layers]:
    spec, configs = family(engine.family), configs_of(engine)
    networks = {
        role: model_spec(spec.roles[role].model).skeleton(configs[role]) for role in ROLES if role in spec.roles
    }
    return {
        role: {
            path: [_random_weights(linear, part, rank, generator) for part in CHANGED if part in linear.part_sizes]
            for path, linear in network.named_modules()
            if isinstance(linear, Linear)
        }
        for role, network in networks.items()
    }


def _random_weights(linear: Linear, part: str, rank: int, generator: torch.Generator) -> LoraWeights:
    a, b = (torch.randn(n, rank, generator=generator) * SIZE for n in (linear.in_features, linear.part_sizes[part]))
    others = {name: b.new_zeros(size, rank) for name, size in linear.part_sizes.items()}
    return LoraWeights(a.T, torch.cat([*(others | {part: b}).values()]))
