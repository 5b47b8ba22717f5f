"""The networks of an engine as modules of torch, made as its manifest says."""

from __future__ import annotations

from collections.abc import Mapping as Tensors
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vlm.errors import EngineError
from vlm.layers.context import ModelContext
from vlm.layers.quant.methods import METHODS, quantization_of
from vlm.parallel.mapping import Mapping
from vlm.registry.catalogs import model_spec

if TYPE_CHECKING:
    from vlm.artifacts.engine_dir import EngineDir


def context_of(engine: EngineDir, role: str) -> ModelContext:
    """Returns what one of an engine's networks is made in. Raises EngineError for weights that no method here keeps."""
    kind, options = engine.manifest.quantization, engine.manifest.quantization_options
    if kind is not None and kind not in METHODS:
        raise EngineError(
            f"{engine.path} keeps its weights as {kind}, which modules of this version do not; rebuild the engine with"
            " vlm build."
        )
    return ModelContext(mapping_of(engine), quantization_of(kind, options).of_role(role))


def mapping_of(engine: EngineDir) -> Mapping:
    """Returns which part of an engine's networks this process runs."""
    return Mapping(**engine.manifest.mapping)


def load_network(engine: EngineDir, role: str, weights: Tensors[str, Tensor], device: torch.device) -> nn.Module:
    """Returns one role's network with these weights, which lie on `device`; nothing is initialized twice. Raises
    EngineError."""
    spec = model_spec(engine.roles[role])
    try:
        return spec.loaded(spec.config.from_dict(engine.config(role)), weights, device, context_of(engine, role))
    except RuntimeError as error:
        raise EngineError(
            f"{engine.path}: the {role} weights do not fit the {spec.name} model of this version; rebuild the engine"
            " with vlm build."
        ) from error
