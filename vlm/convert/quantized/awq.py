"""AWQ's folders, as AutoAWQ writes them by its `gemm` packing.

qweight int32 [in, out / 8]  qzeros int32 [groups, out / 8]  scales [groups, out]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vlm.convert.quantized.integers import Integers
from vlm.convert.quantized.layer import Scheme, SourceLayer, check_shape, number_of_groups, own, unpacked
from vlm.errors import ConfigError, cut

BITS = 4
PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # where the eight outputs of a word lie in it


def scheme(settings: Mapping[str, Any]) -> Scheme:
    """Returns what a configuration says. Raises ConfigError for what is not read."""
    bits = own(settings, "bits", own(settings, "w_bit", BITS))
    said = (settings.get(name) for name in ("version", "checkpoint_format", "format"))
    version = str(next(filter(None, said), "gemm")).lower()
    version = "llm-awq" if settings.get("backend") == "llm-awq" else version  # as transformers has it
    if bits != BITS or version != "gemm":
        raise ConfigError(
            f"this model is quantized by AWQ with {cut(bits)} bits in the packing {cut(version)}; read are 4 bits in"
            " the packing gemm: give one of these or the unquantized model."
        )
    group_size = own(settings, "group_size", own(settings, "q_group_size", 128))
    group_size = None if group_size == -1 else group_size

    def read(name: str, tensors: Mapping[str, Tensor]) -> SourceLayer:
        return _layer(name, tensors, group_size)

    parts = ("qweight", "qzeros", "scales")
    return Scheme("AWQ", "int4-asymmetric", parts=parts, required=parts, read=read, group_size=group_size, folds=True)


def _layer(name: str, tensors: Mapping[str, Tensor], group_size: int | None) -> SourceLayer:
    qweight, scales = tensors["qweight"], tensors["scales"]
    in_features, out = qweight.shape[0], qweight.shape[-1] * 8
    groups = number_of_groups(name, in_features, group_size)
    check_shape(name, "qweight", qweight, (in_features, out // 8))
    check_shape(name, "scales", scales, (groups, out))
    check_shape(name, "qzeros", tensors["qzeros"], (groups, out // 8))
    parameters = Integers(BITS, symmetric=False, group_size=group_size).parameters(
        lambda: _outputs(qweight), lambda: scales.t().float(), lambda: _outputs(tensors["qzeros"])
    )
    return SourceLayer(name, (out, in_features), parameters)


def _outputs(packed: Tensor) -> Tensor:
    """Unpacks int32 [rows, out / 8] -> uint8 [out, rows]."""
    return unpacked(packed, BITS).unflatten(1, (-1, 8))[..., PLACES].flatten(1).t()
