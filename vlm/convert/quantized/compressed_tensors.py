"""Folders of compressed-tensors, as llm-compressor writes them.

int-quantized, float-quantized: weight [out, in]  weight_scale [1] or [out, 1]  input_scale [1]
pack-quantized: weight_packed int32 [out, in · bits / 32]  weight_scale [out, groups]  weight_shape [2]
    weight_zero_point int32 [out · bits / 32, groups]  weight_g_idx [in]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vlm.convert.quantized.integers import ROUNDED_AGAIN, ZERO_LEVEL, Integers
from vlm.convert.quantized.layer import (
    NO_KV_SCALES,
    Read,
    Scheme,
    SourceLayer,
    channel_scale,
    check_shape,
    eight_bits,
    input_scale,
    number_of_groups,
    order_of,
    own,
    unpacked,
)
from vlm.errors import CheckpointError, ConfigError, cut
from vlm.layers.quant.producer import FOLDED

NAIVE = ("int-quantized", "float-quantized", "naive-quantized")
PACKED = "pack-quantized"
KV_SCALES = (".k_scale", ".v_scale", ".q_scale", ".output_scale", ".output_zero_point")


@dataclass(frozen=True)
class Arguments:
    """How weights or what they meet is rounded: compressed-tensors' QuantizationArgs."""

    bits: int
    type: str
    symmetric: bool
    strategy: str
    group_size: int | None
    dynamic: bool

    @classmethod
    def from_settings(cls, values: Mapping[str, Any]) -> Arguments:
        size = own(values, "group_size", 0)
        usual = "group" if size > 0 else "channel" if size == -1 else "tensor"
        strategy = own(values, "strategy", usual)
        return cls(
            bits=own(values, "num_bits", 8),
            type=own(values, "type", "int"),
            symmetric=bool(own(values, "symmetric", True)),
            strategy=strategy,
            group_size=size if strategy == "group" else None,
            dynamic=bool(own(values, "dynamic", False)),
        )

    def __str__(self) -> str:
        words = ["dynamic" if self.dynamic else "static", "symmetric" if self.symmetric else "asymmetric"]
        return f"{cut(self.type)}{cut(self.bits)} {' '.join(words)} by {cut(self.strategy)}"


def scheme(settings: Mapping[str, Any]) -> Scheme:
    """Returns what a configuration says. Raises ConfigError for what is not read."""
    kind, weights, inputs = _arguments(settings)
    method = _method(kind, weights, inputs)
    if method is None or not _reads_inputs(method, weights, inputs):
        raise ConfigError(
            f"this model is quantized by compressed-tensors as {cut(kind)} with weights {weights}"
            f"{'' if inputs is None else f' and inputs {inputs}'}, which is not read; give one of FP8, W8A8 (int8),"
            " W8A16 or W4A16, or the unquantized model."
        )
    found = _packed(method, weights) if kind == PACKED else _naive(method, inputs)
    notes = (NO_KV_SCALES, *found.notes) if settings.get("kv_cache_scheme") else found.notes
    # a word of our own export: other programs say it in their recipe
    return replace(found, dropped=KV_SCALES, notes=notes, folds=bool(settings.get(FOLDED)))


def _packed(method: str, weights: Arguments) -> Scheme:
    integers = Integers(weights.bits, weights.symmetric, weights.group_size)
    required = ("weight_packed", "weight_scale", "weight_shape")
    return Scheme(
        "compressed-tensors",
        method,
        parts=(*required, "weight_zero_point", "weight_g_idx"),
        required=required,
        read=PackedReader(integers),
        group_size=weights.group_size if weights.bits == 4 else None,
        exact=integers.exact,
        notes=() if integers.exact else (ROUNDED_AGAIN,),
    )


def _naive(method: str, inputs: Arguments | None) -> Scheme:
    static = inputs is not None and not inputs.dynamic
    parts = ("weight", "weight_scale", "input_scale", "input_zero_point", "weight_zero_point")
    return Scheme(
        "compressed-tensors",
        method,
        parts=parts,
        required=parts[: 3 if static else 2],
        read=NaiveReader(method, static=static),
    )


def _arguments(settings: Mapping[str, Any]) -> tuple[str, Arguments, Arguments | None]:
    """Returns the format and how weights and inputs of all layers are rounded. Raises ConfigError for other parts."""
    groups = own(settings, "config_groups", {})
    others = [name for name, value in (("transform_config", own(settings, "transform_config", {}).get("config_groups")),
              ("sparsity_config", own(settings, "sparsity_config", {}).get("format", "dense") != "dense"),
              ("config_groups without weights", not isinstance(groups, Mapping) or not groups)) if value]  # fmt: skip
    schemes = {}
    for group in groups.values() if isinstance(groups, Mapping) else ():
        if not isinstance(group, Mapping) or not group.get("weights"):
            others.append("config_groups without weights")
        elif group.get("output_activations") or (group["weights"].get("strategy") == "block"):
            others.append("output_activations or blocks of weights")
        else:
            inputs = group.get("input_activations")
            kind = own(group, "format", own(settings, "format", ""))
            key = (kind, Arguments.from_settings(group["weights"]), inputs and Arguments.from_settings(inputs))
            schemes[key] = None
    if len(schemes) > 1:
        others.append("several schemes in one model")
    if others:
        raise ConfigError(
            f"this model is quantized by compressed-tensors with {others[0]}, which is not read; give the unquantized"
            " model."
        )
    return next(iter(schemes))


def _method(kind: str, weights: Arguments, inputs: Arguments | None) -> str | None:
    """Returns ours; None where there is none."""
    if kind == PACKED and weights.type == "int" and weights.strategy in ("group", "channel", "tensor"):
        known = weights.bits in ZERO_LEVEL and inputs is None and (weights.symmetric or weights.strategy != "tensor")
        return Integers(weights.bits, weights.symmetric, weights.group_size).method if known else None
    if kind not in NAIVE or weights.bits != 8 or not weights.symmetric or weights.strategy not in ("channel", "tensor"):
        return None
    if weights.type == "float":
        return "fp8" if inputs is not None else None
    return "int8" if inputs is None else "w8a8"


def _reads_inputs(method: str, weights: Arguments, inputs: Arguments | None) -> bool:
    if inputs is None:
        return True
    alike = method in ("w8a8", "fp8") and (inputs.bits, inputs.type) == (8, weights.type) and inputs.symmetric
    return alike and inputs.strategy in (("token", "tensor") if inputs.dynamic else ("tensor",))


@dataclass(frozen=True)
class NaiveReader:
    """Reads layers whose values have a type of their own."""

    method: str
    static: bool  # have inputs a scale of their own, found beforehand?

    def __call__(self, name: str, tensors: Mapping[str, Tensor]) -> SourceLayer:
        layer = eight_bits(name, tensors, self.method)
        zeros = [tensors[each] for each in ("input_zero_point", "weight_zero_point") if each in tensors]
        if any(zero.float().any() for zero in zeros):
            raise CheckpointError(f"{name} has zero points, its configuration says symmetric; fetch the folder again.")
        scales = input_scale(name, tensors) if self.static else {}
        return replace(layer, parameters={**layer.parameters, **scales})


@dataclass(frozen=True)
class PackedReader:
    """Reads layers whose values lie side by side in words of 32 bits."""

    integers: Integers

    def __call__(self, name: str, tensors: Mapping[str, Tensor]) -> SourceLayer:
        check_shape(name, "weight_shape", tensors["weight_shape"], (2,))
        bits, (out, in_features) = self.integers.bits, tensors["weight_shape"].tolist()
        groups = number_of_groups(name, in_features, self.integers.group_size)
        check_shape(name, "weight_packed", tensors["weight_packed"], (out, -(-in_features * bits // 32)))
        if groups > 1:
            check_shape(name, "weight_scale", tensors["weight_scale"], (out, groups))
        stored = tensors["weight_scale"]
        scale = stored.float() if groups > 1 else channel_scale(name, stored, out)
        order = order_of(name, tensors["weight_g_idx"], groups) if "weight_g_idx" in tensors else None
        parameters = self.integers.parameters(
            lambda: unpacked(tensors["weight_packed"], bits)[:, :in_features],
            lambda: scale,
            self._zero(name, tensors, (out, groups)),
            order,
        )
        return SourceLayer(name, (out, in_features), parameters)

    def _zero(self, name: str, tensors: Mapping[str, Tensor], shape: tuple[int, int]) -> Read:
        """Returns the reader of the zero points uint8 [out, groups]."""
        bits, (out, groups) = self.integers.bits, shape
        if self.integers.symmetric:
            return lambda: torch.full(shape, ZERO_LEVEL[bits], dtype=torch.uint8)
        if "weight_zero_point" not in tensors:
            raise CheckpointError(f"{name} lacks its weight_zero_point; fetch the folder again.")
        stored = tensors["weight_zero_point"]
        check_shape(name, "weight_zero_point", stored, (-(-out * bits // 32), groups))
        return lambda: unpacked(stored.t(), bits)[:, :out].t()
