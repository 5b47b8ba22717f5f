"""The weights of a network as they are -> as the methods of its layers keep them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vlm.artifacts.checkpoint import RoleWeights
from vlm.artifacts.weights import Layout, TensorSource
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.quant.base import LinearMethod, ParameterSpec
from vlm.layers.quant.dense import Dense
from vlm.layers.quant.quantization import Quantization
from vlm.registry.catalogs import model_spec
from vlm.registry.spec import ModelSpec


@dataclass(frozen=True)
class QuantizedLayer:
    """How one Linear of a network is kept."""

    method: LinearMethod
    specs: Mapping[str, ParameterSpec]  # by the parameters' names in the layer


def quantized_layers(spec: ModelSpec, config: Any, quantization: Quantization) -> dict[str, QuantizedLayer]:
    """Returns the layers of a network that a quantization changes, by their paths. Raises ConfigError for a layer that
    the method cannot keep."""
    network = spec.skeleton(config, ModelContext(quantization=quantization))
    linears = {path: module for path, module in network.named_modules() if isinstance(module, Linear)}
    return {
        path: QuantizedLayer(linear.method, linear.method.layout(linear.in_features, linear.part_sizes))
        for path, linear in linears.items()
        if not isinstance(linear.method, Dense)
    }


def own_types(layers: Mapping[str, QuantizedLayer]) -> dict[str, torch.dtype]:
    """Returns the types of parameters that are not in the one that the network computes in, by their whole names."""
    return {
        f"{path}.{name}": spec.dtype
        for path, layer in layers.items()
        for name, spec in layer.specs.items()
        if spec.dtype is not None
    }


def quantized(weights: RoleWeights, quantization: Quantization) -> RoleWeights:
    """Returns the weights of one network quantized, each matrix when it is written; those that are already stay as they
    are. Raises ConfigError for a layer that the method cannot keep."""
    spec = model_spec(weights.model)
    layers = quantized_layers(spec, spec.config.from_dict(weights.config), quantization)
    layers = {path: layer for path, layer in layers.items() if not _is_quantized(weights, path, layer)}
    source, layout = weights.source, Layout()
    for name, (dtype, shape) in weights.source.layout.items():
        path, _, part = name.rpartition(".")
        layout |= (
            {f"{path}.{own}": (spec.dtype or dtype, spec.shape) for own, spec in layers[path].specs.items()}
            if part == "weight" and path in layers
            else {name: (dtype, shape)}
        )

    def read(name: str) -> Tensor:
        path, _, part = name.rpartition(".")
        if path not in layers or part not in layers[path].specs:
            return source.read(name)
        return layers[path].method.quantize(source.read(f"{path}.weight"))[part].to(layout[name][0])

    kept = weights.quantized | own_types(layers).keys()
    return replace(weights, source=TensorSource(layout, read), quantized=kept)


def _is_quantized(weights: RoleWeights, path: str, layer: QuantizedLayer) -> bool:
    return any(f"{path}.{name}" in weights.quantized for name in layer.specs)
