"""Folders of NVIDIA's ModelOpt, which hf_quant_config.json describes.

FP8 and int8: weight [out, in]  weight_scale [] or [out]  input_scale []  pre_quant_scale [in]
int4 (AWQ): weight uint8 [out / 2, in], an even output in the low half of a byte  weight_scale [out, groups]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vlm.convert.quantized.layer import (
    NO_KV_SCALES,
    Read,
    Scheme,
    SourceLayer,
    check_shape,
    eight_bits,
    input_scale,
    number_of_groups,
    own,
)
from vlm.errors import ConfigError, cut, listed
from vlm.ops.layouts.int4_packing import packed4

METHODS = {
    "FP8": "fp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "fp8",
    "W8A16": "int8",
    "W8A8_SQ_PER_CHANNEL": "w8a8",
    "W4A16_AWQ": "int4",
}
FOLDING = ("W4A16_AWQ", "W8A8_SQ_PER_CHANNEL")  # scales of q/k/v and gate/up go into the norms
KV_SCALES = (".k_scale", ".v_scale", ".k_bias", ".v_bias")
PARTS = ("weight", "weight_scale", "input_scale", "pre_quant_scale")


def scheme(settings: Mapping[str, Any]) -> Scheme:
    """Returns what a configuration says. Raises ConfigError for what is not read."""
    details = settings.get("quantization", settings)
    kind = details.get("quant_algo")
    if kind not in METHODS:
        raise ConfigError(
            f"this model is quantized by ModelOpt as {cut(kind)}; read are {listed(METHODS)}: give one of these or the"
            " unquantized model."
        )
    group_size = own(details, "group_size", 128) if kind == "W4A16_AWQ" else None
    static = kind in ("FP8", "W8A8_SQ_PER_CHANNEL")
    cache = own(details, "kv_cache_quant_algo", own(details, "kv_cache_scheme", None))
    return Scheme(
        f"ModelOpt's {kind}",
        METHODS[kind],
        parts=PARTS,
        required=PARTS[: 3 if static else 2],
        read=ModelOptReader(METHODS[kind], group_size, static=static),
        group_size=group_size,
        dropped=KV_SCALES,
        notes=(NO_KV_SCALES,) if cache else (),
        folds=kind in FOLDING,
    )


@dataclass(frozen=True)
class ModelOptReader:
    """Reads layers of one kind."""

    method: str
    group_size: int | None
    static: bool  # have inputs a scale of their own, found beforehand?

    def __call__(self, name: str, tensors: Mapping[str, Tensor]) -> SourceLayer:
        scales: dict[str, Read] = input_scale(name, tensors) if self.static else {}
        size = self.group_size
        layer = _int4(name, tensors, size) if size else eight_bits(name, tensors, self.method)
        if "pre_quant_scale" in tensors:
            check_shape(name, "pre_quant_scale", tensors["pre_quant_scale"], layer.shape[1:])
            scales["pre_quant_scale"] = lambda: tensors["pre_quant_scale"].float()
        return replace(layer, parameters={**layer.parameters, **scales})


def _int4(name: str, tensors: Mapping[str, Tensor], group_size: int) -> SourceLayer:
    weight, scale = tensors["weight"], tensors["weight_scale"]
    out, in_features = len(weight) * 2, weight.shape[-1]
    groups = number_of_groups(name, in_features, group_size)
    check_shape(name, "weight", weight, (out // 2, in_features))
    check_shape(name, "weight_scale", scale, (out, groups))

    def packed() -> Tensor:
        levels = torch.stack((weight & 15, weight >> 4), 1).flatten(0, 1)  # [out, in], two's complement
        return packed4(levels ^ 8)

    parameters = {"weight_packed": packed, "weight_scale": lambda: scale.float()}
    return SourceLayer(name, (out, in_features), parameters)
