"""The networks of an engine as modules of torch, made as its manifest says."""

from __future__ import annotations

from collections.abc import Mapping as Tensors
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vlm.errors import EngineError
from vlm.layers.adapters.base import AdapterRoom
from vlm.layers.context import ModelContext
from vlm.layers.quant.methods import METHODS, quantization_of
from vlm.parallel.collectives import ALONE, Ranks
from vlm.parallel.mapping import Mapping
from vlm.registry.catalogs import model_spec

if TYPE_CHECKING:
    from vlm.artifacts.native.engine_dir import EngineDir


def context_of(engine: EngineDir, role: str, ranks: Ranks = ALONE, adapters: AdapterRoom | None = None) -> ModelContext:
    """Returns what one of an engine's networks, or a rank's part of it, is made in. Raises EngineError for weights that
    no method here keeps."""
    kind, options = engine.manifest.quantization, engine.manifest.quantization_options
    if kind is not None and kind not in METHODS:
        raise EngineError(
            f"{engine.path} keeps its weights as {kind}, which modules of this version do not; rebuild the engine with"
            " vlm build."
        )
    mapping = mapping_of(engine, ranks.rank)
    own = mapping.of_role(role)
    context = ModelContext(own, quantization_of(kind, options).of_role(role), adapters)
    if own.size == 1:
        return context
    splitting = ranks.stage if own.tp == mapping.tp else ranks.encoder
    return replace(context, collectives=splitting, pipeline=ranks.pipeline)


def mapping_of(engine: EngineDir, rank: int = 0) -> Mapping:
    """Returns which part of an engine's networks a process runs."""
    return Mapping(**engine.manifest.mapping, rank=rank)


def check_ranks(engine: EngineDir, ranks: Ranks) -> None:
    """Raises EngineError for other ranks than the engine's networks are split among."""
    size = mapping_of(engine).size
    if size != ranks.size:
        raise EngineError(
            f"{engine.path} is built for {size} rank{'s' * (size > 1)}, {ranks.size} run{'s' * (ranks.size == 1)} it;"
            f" run it with {size}, or build it for {ranks.size}."
        )


def load_network(
    engine: EngineDir,
    role: str,
    weights: Tensors[str, Tensor],
    device: torch.device,
    ranks: Ranks = ALONE,
    *,
    adapters: AdapterRoom | None = None,
) -> nn.Module:
    """Returns one role's network, or a rank's part of it, with these weights, which lie on `device`, and with room for
    adapters; nothing is initialized twice. Raises EngineError."""
    spec, context = model_spec(engine.roles[role]), context_of(engine, role, ranks, adapters)
    try:
        return spec.loaded(spec.config.from_dict(engine.config(role)), weights, device, context)
    except RuntimeError as error:
        raise EngineError(
            f"{engine.path}: the {role} weights do not fit the {spec.name} model of this version; rebuild the engine"
            " with vlm build."
        ) from error
