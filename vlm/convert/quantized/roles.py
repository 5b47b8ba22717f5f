"""The quantized layers of a folder -> the parameters of a method of ours in each network."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.weights import Layout, TensorSource
from vlm.convert.quantized.layer import Scheme, SourceLayer
from vlm.convert.quantized.source import QuantizedSource
from vlm.convert.roles import ConvertedRole
from vlm.convert.rules import Step
from vlm.errors import CheckpointError, VlmWarning, listed
from vlm.layers.linear import Linear
from vlm.layers.quant.base import ParameterSpec
from vlm.layers.quant.inputs import Inputs, QuantizedMethod
from vlm.layers.quant.methods import GROUP_SIZE, METHODS, quantization_of
from vlm.layers.quant.producer import FOLDED
from vlm.registry.weights.quantized import own_types, quantized, quantized_layers

INPUTS = tuple(each.name for each in fields(Inputs))


@dataclass(frozen=True)
class QuantizedRoles:
    """The networks of a checkpoint, and what it says of their quantization."""

    roles: dict[str, RoleWeights]
    quantization: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TargetLayer:
    """A matrix of a network, and the layers and tensors of a folder that it is made of."""

    step: Step
    index: int  # among the step's results
    sources: tuple[SourceLayer | Tensor, ...]

    @property
    def layers(self) -> list[SourceLayer]:
        return [source for source in self.sources if isinstance(source, SourceLayer)]

    def is_quantized(self) -> bool:
        """Says whether it can stay quantized: all of it is, its parts take their inputs alike, and its rows are theirs:
        inputs in another order would have scales and packed levels of others."""
        if len(self.layers) < len(self.sources) or not self.step.moves_rows([each.shape for each in self.layers]):
            return False
        names = {frozenset(layer.parameters) for layer in self.layers}
        return len(names) == 1 and all(self._alike(name) for name in INPUTS if name in self.layers[0].parameters)

    def _alike(self, name: str) -> bool:
        first, *others = [layer.parameters[name]() for layer in self.layers]
        return name == "input_scale" or all(torch.equal(first, other) for other in others)

    def read(self, name: str, spec: ParameterSpec) -> Tensor:
        """Returns one of the parameters of our method."""
        values = [layer.parameters[name]() for layer in self.layers]
        if name in INPUTS:
            return torch.stack(values).amax(0)  # but for the static scales they are alike
        # one scale for all groups
        values = [v.expand(-1, spec.shape[1]) if v.shape[1] == 1 else v for v in values]
        return self._joined(values).to(spec.dtype or torch.float32)

    def dense(self, scheme: Scheme) -> Tensor:
        """Returns the weight as it is, float32."""
        values = [
            dense_weight(each, scheme) if isinstance(each, SourceLayer) else each.float() for each in self.sources
        ]
        ways = [isinstance(source, Tensor) and self.step.transposes for source in self.sources]
        return self._joined([value.T if is_turned else value for value, is_turned in zip(values, ways, strict=True)])

    def _joined(self, values: list[Tensor]) -> Tensor:
        """Returns what the step makes of matrices whose rows are outputs."""
        values = [value.T for value in values] if self.step.transposes else values
        return self.step.run(values)[self.index].contiguous()


def dense_weight(layer: SourceLayer, scheme: Scheme) -> Tensor:
    """Returns the weight [out, in] float32 that a layer of a folder stands for."""
    parameters = {name: read() for name, read in layer.parameters.items()}
    if not scheme.exact:
        return parameters["weight"]
    method = METHODS[scheme.method]({})
    if isinstance(method, QuantizedMethod):
        method = method.with_inputs(Inputs(**{name: name in parameters for name in INPUTS}))
    return method.dequantize(parameters)


def quantized_roles(
    converted: Mapping[str, ConvertedRole], source: QuantizedSource, names: Mapping[str, Any]
) -> QuantizedRoles:
    """Returns the networks as they are written, those of their layers quantized that the folder has so. `names`: what
    the tensors are called here -> in the folder. Raises CheckpointError where nothing of a network is quantized."""
    scheme, targets = source.scheme, {}
    for role, each in converted.items():
        for target, layer in _targets(each, source, names).items():
            targets[role, target] = layer
    kept = {key for key, layer in targets.items() if _is_linear(converted[key[0]], key[1]) and layer.is_quantized()}
    if not kept:
        raise CheckpointError(f"no layer of this model that can be quantized is ({scheme.format}); fetch it again.")
    if plain := sorted(f"{role}.{target}" for role, target in targets.keys() - kept):
        warnings.warn(f"{listed(plain)} are not quantized: a part of each is not, or takes its inputs in a way or an"
                      " order of its own.", VlmWarning, stacklevel=2)  # fmt: skip
    options = _options(converted, scheme, {key: targets[key] for key in kept})
    roles = {}
    for role, each in converted.items():
        own = {target: layer for (place, target), layer in targets.items() if place == role}
        roles[role] = _weights(role, each, scheme, options, own)
    return QuantizedRoles(roles, scheme.method, options)


def _targets(role: ConvertedRole, source: QuantizedSource, names: Mapping[str, Any]) -> dict[str, TargetLayer]:
    """Returns the matrices that quantized layers are parts of, by their names."""

    def part(name: str) -> SourceLayer | Tensor:
        whole = names[role.names[name]]
        return source.layers.get(whole, None) or source.tensors[whole]

    return {
        target: TargetLayer(step, step.targets.index(target), tuple(map(part, step.sources)))
        for target, step in role.outcome.steps.items()
        if role.outcome.tensors[target].is_meta
    }


def _is_linear(role: ConvertedRole, target: str) -> bool:
    return target.removesuffix(".weight") in _linears(role)


def _linears(role: ConvertedRole) -> set[str]:
    network = role.spec.skeleton(role.config)
    return {path for path, module in network.named_modules() if isinstance(module, Linear)}


def _options(
    converted: Mapping[str, ConvertedRole], scheme: Scheme, kept: Mapping[tuple[str, str], TargetLayer]
) -> dict[str, Any]:
    """Returns what is said of the quantization beside its name."""
    paths = {f"{role}.{target.removesuffix('.weight')}": layer for (role, target), layer in kept.items()}
    options: dict[str, Any] = {"ignore": _ignored(converted, set(paths))}
    if scheme.method.startswith("int4"):
        sizes = [layer.layers[0].shape[1] for layer in paths.values()]
        options["group_size"] = scheme.group_size or math.gcd(GROUP_SIZE, *sizes)
    if scheme.folds:
        options[FOLDED] = scheme.format
    for name in INPUTS:
        having = sorted(path for path, layer in paths.items() if name in layer.layers[0].parameters)
        options |= {name: True if len(having) == len(paths) else having} if having else {}
    return options


def _ignored(converted: Mapping[str, ConvertedRole], kept: set[str]) -> list[str]:
    """Returns the names of the layers that are not quantized, that of a role for all of it."""
    ignored = []
    for role, each in converted.items():
        paths = {f"{role}.{path}" for path in _linears(each)}
        ignored += [f"{role}.*"] if paths and not paths & kept else sorted(paths - kept)
    return ignored


def _weights(
    role: str, converted: ConvertedRole, scheme: Scheme, options: dict[str, Any], targets: Mapping[str, TargetLayer]
) -> RoleWeights:
    """Returns one network's weights, each matrix read when it is written."""
    quantization = quantization_of(scheme.method, options).of_role(role)
    layers = quantized_layers(converted.spec, converted.config, quantization) if scheme.exact else {}
    specs = {f"{path}.{name}": spec for path, layer in layers.items() for name, spec in layer.specs.items()}
    others = {n: t for n, t in converted.outcome.tensors.items() if n.removesuffix(".weight") not in layers}
    layout = Layout({name: (torch.float32 if t.is_meta else t.dtype, tuple(t.shape)) for name, t in others.items()})
    layout |= {name: (spec.dtype or torch.float32, spec.shape) for name, spec in specs.items()}

    def read(name: str) -> Tensor:
        path, _, own = name.rpartition(".")
        if name in specs:
            return _checked(name, targets[f"{path}.weight"].read(own, specs[name]), specs[name])
        return _finite(name, targets[name].dense(scheme)) if name in targets else converted.outcome.tensors[name]

    plain = replace(converted.weights, source=TensorSource(layout, read), quantized=frozenset(own_types(layers)))
    return plain if scheme.exact else quantized(plain, quantization)


def _checked(name: str, tensor: Tensor, spec: ParameterSpec) -> Tensor:
    """Raises CheckpointError for a parameter of another shape than our method's, and for values that no scale has."""
    if tuple(tensor.shape) != spec.shape:
        raise CheckpointError(
            f"{name} has shape {list(tensor.shape)} and should have {list(spec.shape)}; fetch the folder again."
        )
    if name.endswith(".input_scale") and (tensor <= 0).any():
        raise CheckpointError(f"{name} is not positive, inputs are divided by it; fetch the folder again.")
    return _finite(name, tensor) if name.endswith("_scale") else tensor


def _finite(name: str, tensor: Tensor) -> Tensor:
    """Returns a tensor. Raises CheckpointError where it has NaN or infinite values."""
    if not tensor.isfinite().all():
        raise CheckpointError(f"{name} has values that are not finite (NaN or infinite); fetch the folder again.")
    return tensor
