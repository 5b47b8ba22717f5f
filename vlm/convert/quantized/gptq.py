"""GPTQ's folders, as AutoGPTQ, GPTQModel and transformers write them.

qweight int32 [in · bits / 32, out]  qzeros int32 [groups, out · bits / 32]  scales [groups, out]  g_idx [in]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlm.convert.quantized.integers import ROUNDED_AGAIN, ZERO_LEVEL, Integers
from vlm.convert.quantized.layer import (
    Scheme,
    SourceLayer,
    check_shape,
    number_of_groups,
    order_of,
    own,
    unpacked,
)
from vlm.errors import CheckpointError, ConfigError, cut

FORMATS = {"gptq": 1, "gptq_v2": 0}  # what is to be added to the zero points that are stored


def scheme(settings: Mapping[str, Any]) -> Scheme:
    """Returns what a configuration says. Raises ConfigError for what is not read."""
    bits, kind = own(settings, "bits", 4), own(settings, "checkpoint_format", own(settings, "format", "gptq"))
    if bits not in ZERO_LEVEL or kind not in FORMATS:
        raise ConfigError(
            f"this model is quantized by GPTQ with {cut(bits)} bits in the format {cut(kind)}; read are 4 and 8 bits in"
            " the formats gptq and gptq_v2: give the unquantized model."
        )
    if (words := own(settings, "pack_dtype", "int32")) != "int32":
        raise ConfigError(
            f"this model is quantized by GPTQ with its weights packed in {cut(words)} (pack_dtype); read are those in"
            " int32: give the unquantized model."
        )
    if any(isinstance(each, Mapping) and each for each in own(settings, "dynamic", {}).values()):
        raise ConfigError(
            "this model is quantized by GPTQ with other settings for some layers (dynamic), which are not read; give"
            " the unquantized model."
        )
    group_size = own(settings, "group_size", 128)
    group_size = None if group_size == -1 else group_size
    symmetric = bool(own(settings, "sym", True))
    integers = Integers(bits, symmetric=symmetric, group_size=group_size)
    required = ("qweight", "qzeros", "scales")
    return Scheme(
        f"GPTQ, {bits} bits",
        integers.method,
        parts=(*required, "g_idx"),
        required=required,
        read=GptqReader(integers, FORMATS[kind]),
        group_size=group_size if bits == 4 else None,
        exact=integers.exact,
        notes=() if integers.exact else (ROUNDED_AGAIN,),
    )


@dataclass(frozen=True)
class GptqReader:
    """Reads layers of one configuration."""

    integers: Integers
    added: int  # to the zero points that are stored

    def __call__(self, name: str, tensors: Mapping[str, Tensor]) -> SourceLayer:
        qweight, scales = tensors["qweight"], tensors["scales"]
        out, per_word = qweight.shape[-1], 32 // self.integers.bits
        in_features = qweight.shape[0] * per_word
        groups = number_of_groups(name, in_features, self.integers.group_size)
        check_shape(name, "qweight", qweight, (in_features // per_word, out))
        check_shape(name, "scales", scales, (groups, out))
        check_shape(name, "qzeros", tensors["qzeros"], (groups, out // per_word))
        order = None
        if "g_idx" in tensors:
            check_shape(name, "g_idx", tensors["g_idx"], (in_features,))
            order = order_of(name, tensors["g_idx"], groups)
        parameters = self.integers.parameters(
            lambda: unpacked(qweight.t(), self.integers.bits),
            lambda: scales.t().float(),
            lambda: self._zero(name, tensors["qzeros"]),
            order,
        )
        if self.integers.symmetric and self.integers.exact:
            self._zero(name, tensors["qzeros"])
        return SourceLayer(name, (out, in_features), parameters)

    def _zero(self, name: str, qzeros: Tensor) -> Tensor:
        """Returns the zero points uint8 [out, groups]."""
        bits = self.integers.bits
        zero = (unpacked(qzeros, bits).t().int() + self.added) & (2**bits - 1)
        if self.integers.symmetric and (zero != ZERO_LEVEL[bits]).any():
            raise CheckpointError(f"{name} has zero points, its configuration says sym; fetch the folder again.")
        return zero.to(torch.uint8)
