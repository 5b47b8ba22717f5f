"""Folders of NVIDIA's ModelOpt, which hf_quant_config.json describes.

FP8 and int8: weight [out, in]  weight_scale [] or [out]  input_scale []  pre_quant_scale [in]
int4 (AWQ): weight uint8 [out / 2, in], an even output in the low half of a byte  weight_scale [out, groups]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vlm.convert.quantized.layer import (
    Read,
    Scheme,
    SourceLayer,
    channel_scale,
    check_shape,
    input_scale,
    number_of_groups,
    own,
)
from vlm.errors import CheckpointError, ConfigError, cut, listed
from vlm.layers.quant.fp8 import FP8
from vlm.ops.int4_packing import packed4

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

    def read(name: str, tensors: Mapping[str, Tensor]) -> SourceLayer:
        readers: dict[str, Read] = input_scale(name, tensors) if static else {}
        if "pre_quant_scale" in tensors:
            readers["pre_quant_scale"] = lambda: tensors["pre_quant_scale"].float()
        shape, weight = _int4(name, tensors, group_size) if group_size else _eight_bits(name, tensors, METHODS[kind])
        if "pre_quant_scale" in tensors:
            check_shape(name, "pre_quant_scale", tensors["pre_quant_scale"], shape[1:])
        return SourceLayer(name, shape, weight | readers)

    required = ("weight", "weight_scale", "input_scale") if static else ("weight", "weight_scale")
    cache = own(details, "kv_cache_quant_algo", own(details, "kv_cache_scheme", None))
    note = "its calibrated scales of the KV cache are left out: --kv-cache-dtype keeps one for each token and head"
    return Scheme(
        f"ModelOpt's {kind}", METHODS[kind], PARTS, required, read, group_size, dropped=KV_SCALES,
        notes=(note,) if cache else (), folds=kind in FOLDING,
    )  # fmt: skip


def _eight_bits(name: str, tensors: Mapping[str, Tensor], method: str) -> tuple[tuple[int, int], dict[str, Read]]:
    weight, kept = tensors["weight"], FP8 if method == "fp8" else torch.int8
    if weight.dtype != kept or weight.dim() != 2:
        raise CheckpointError(
            f"{name}.weight is {weight.dtype} of shape {list(weight.shape)}, its quantization needs a matrix of {kept};"
            " fetch the folder again."
        )
    out, in_features = weight.shape
    scale = channel_scale(name, tensors["weight_scale"], out)
    return (out, in_features), {"weight": lambda: weight, "weight_scale": lambda: scale}


def _int4(name: str, tensors: Mapping[str, Tensor], group_size: int) -> tuple[tuple[int, int], dict[str, Read]]:
    weight, scale = tensors["weight"], tensors["weight_scale"]
    out, in_features = len(weight) * 2, weight.shape[-1]
    groups = number_of_groups(name, in_features, group_size)
    check_shape(name, "weight", weight, (out // 2, in_features))
    check_shape(name, "weight_scale", scale, (out, groups))

    def packed() -> Tensor:
        levels = torch.stack((weight & 15, weight >> 4), 1).flatten(0, 1)  # [out, in], two's complement
        return packed4(levels ^ 8)

    return (out, in_features), {"weight_packed": packed, "weight_scale": lambda: scale.float()}
