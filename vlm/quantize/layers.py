"""The layers of a checkpoint that are quantized: their methods, and the parameters that their weights become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.weights import Layout, TensorFiles, TensorSource, write_tensors
from vlm.layers.quant.quantization import Quantization
from vlm.quantize.algorithms.base import Parameters
from vlm.quantize.folding import Fold
from vlm.registry.catalogs import model_spec
from vlm.registry.weights.quantized import QuantizedLayer, own_types, quantized_layers


@dataclass(frozen=True)
class Layer:
    """One Linear of a checkpoint, and how it is to be kept."""

    role: str
    path: str  # in the role's network
    in_features: int
    kept: QuantizedLayer

    @property
    def name(self) -> str:
        return f"{self.role}.{self.path}"


def layers_to_quantize(checkpoint: Checkpoint, quantization: Quantization) -> list[Layer]:
    """Returns the layers whose weights a quantization changes, in the order in which they run. Raises ConfigError for
    one that its method cannot keep."""
    return [layer for role in checkpoint.roles for layer in _of_role(checkpoint, role, quantization.of_role(role))]


def _of_role(checkpoint: Checkpoint, role: str, quantization: Quantization) -> list[Layer]:
    spec, weights = model_spec(checkpoint.roles[role]), checkpoint.weights(role)
    kept = quantized_layers(spec, spec.config.from_dict(checkpoint.config(role)), quantization)
    return [Layer(role, path, weights[f"{path}.weight"].shape[1], layer) for path, layer in kept.items()]


class ParameterStore:
    """Parameters of quantized layers on the disk, a file a layer: no more than one of them is in memory."""

    def __init__(self, folder: Path):
        self.folder = folder

    def put(self, layer: Layer, parameters: Parameters) -> None:
        """Writes one layer's, in the types that its method keeps them in."""
        kinds = {name: spec.dtype or torch.float32 for name, spec in layer.kept.specs.items()}
        kept = {name: parameters[name].to(kind).cpu() for name, kind in kinds.items()}
        write_tensors(self._file(layer), TensorSource.from_tensors(kept))

    def get(self, layer: Layer, name: str) -> Tensor:
        return TensorFiles([self._file(layer)])[name]

    def _file(self, layer: Layer) -> Path:
        return self.folder / f"{layer.name}.safetensors"


def quantized_roles(
    checkpoint: Checkpoint, layers: list[Layer], store: ParameterStore, folds: Mapping[str, Fold]
) -> dict[str, RoleWeights]:
    """Returns the checkpoint's networks with the store's parameters in place of the layers' weights. `folds`: where the
    store's scales of some layers' inputs go, by the layers' names."""
    by_role = {role: {layer.path: layer for layer in layers if layer.role == role} for role in checkpoint.roles}
    return {role: _quantized(checkpoint, role, by_path, store, folds) for role, by_path in by_role.items()}


def _quantized(
    checkpoint: Checkpoint, role: str, layers: dict[str, Layer], store: ParameterStore, folds: Mapping[str, Fold]
) -> RoleWeights:
    weights, layout = checkpoint.weights(role), Layout()
    for name, entry in TensorSource.from_tensors(weights).layout.items():
        path, _, part = name.rpartition(".")
        is_replaced = part == "weight" and path in layers
        specs = layers[path].kept.specs if is_replaced else {}
        own = {f"{path}.{each}": (spec.dtype or torch.float32, spec.shape) for each, spec in specs.items()}
        layout |= own if is_replaced else {name: entry}

    folded = [(layer, folds[layer.name]) for layer in layers.values() if layer.name in folds]

    def read(name: str) -> Tensor:
        path, _, part = name.rpartition(".")
        is_stored = path in layers and part in layers[path].kept.specs
        value = store.get(layers[path], part) if is_stored else weights[name]
        for layer, fold in folded:
            if name in fold.tensors:
                value = fold.multiplied(value, store.get(layer, "pre_quant_scale"))
        return value

    kept = own_types({path: layer.kept for path, layer in layers.items()}).keys()
    return RoleWeights(
        checkpoint.roles[role], checkpoint.config(role), TensorSource(layout, read), quantized=frozenset(kept)
    )
