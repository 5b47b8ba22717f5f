"""The weights of a network as they are -> as the methods of its layers keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.weights import Layout, TensorSource
from vlm.errors import ConfigError, listed
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.quant.base import LinearMethod, ParameterSpec
from vlm.layers.quant.dense import Dense
from vlm.layers.quant.methods import IGNORE
from vlm.layers.quant.quantization import Quantization, unmatched
from vlm.registry.catalogs import model_spec
from vlm.registry.role_configs import RoleConfigs
from vlm.registry.spec import ModelSpec

BLOCK = 1 << 20  # values that are quantized at a time


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


def check_ignored(ignore: Iterable[str] | None, models: Mapping[str, str], configs: RoleConfigs) -> None:
    """Raises ConfigError for a pattern of layers that stay as they are which matches none of a model's, but for those
    that hold where none is given. `models`, `configs`: the networks' names and configurations, by role."""
    if not (own := set(ignore or ()) - set(IGNORE)):
        return
    networks = {role: model_spec(name).skeleton(configs[role], ModelContext()) for role, name in models.items()}
    modules = {f"{role}.{path}": each for role, net in networks.items() for path, each in net.named_modules() if path}
    if unknown := unmatched(sorted(own), modules):
        linears = [name for name, module in modules.items() if isinstance(module, Linear)]
        raise ConfigError(
            f"ignore names {listed(unknown)}, which no layer of the model matches; there are {listed(linears, 6)}.",
            settings=("ignore",),
        )


def own_types(layers: Mapping[str, QuantizedLayer]) -> dict[str, torch.dtype]:
    """Returns the types of parameters that are not in the one that the network computes in, by their whole names."""
    return {
        f"{path}.{name}": spec.dtype
        for path, layer in layers.items()
        for name, spec in layer.specs.items()
        if spec.dtype is not None
    }


def quantized(weights: RoleWeights, quantization: Quantization) -> RoleWeights:
    """Returns the weights of one network quantized, each matrix once, when the first of its parameters is written;
    those that are already stay as they are. Raises ConfigError for a layer that the method cannot keep."""
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

    memory = {path: _Parameters(layer, partial(source.read, f"{path}.weight")) for path, layer in layers.items()}

    def read(name: str) -> Tensor:
        path, _, part = name.rpartition(".")
        if path not in layers or part not in layers[path].specs:
            return source.read(name)
        return memory[path].take(part).to(layout[name][0])

    kept = weights.quantized | own_types(layers).keys()
    return replace(weights, source=TensorSource(layout, read), quantized=kept)


class _Parameters:
    """The parameters of one layer: found when the first is taken, each forgotten when it is. Threads may take them."""

    def __init__(self, layer: QuantizedLayer, read_weight: Callable[[], Tensor]):
        self._layer, self._read_weight = layer, read_weight
        self._found: dict[str, Tensor] = {}
        self._lock = Lock()

    def take(self, part: str) -> Tensor:
        with self._lock:
            if part not in self._found:
                self._found = quantized_by_blocks(self._layer.method, self._read_weight())
            return self._found.pop(part)


def quantized_by_blocks(method: LinearMethod, weight: Tensor) -> dict[str, Tensor]:
    """Returns the method's parameters for a weight [out, in], some rows after the others: what is between stays in the
    processor's cache, which takes a tenth of the time."""
    blocks = [method.quantize(rows) for rows in weight.split(max(1, BLOCK // weight.shape[1]))]
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def _is_quantized(weights: RoleWeights, path: str, layer: QuantizedLayer) -> bool:
    return any(f"{path}.{name}" in weights.quantized for name in layer.specs)
