"""What the readers of quantized folders return: each layer in our terms, whatever way its folder keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vlm.errors import CheckpointError
from vlm.layers.quant.fp8 import FP8

NO_KV_SCALES = "its calibrated scales of the KV cache are left out: --kv-cache-dtype keeps one for each token and head"
Read = Callable[[], Tensor]


@dataclass(frozen=True)
class SourceLayer:
    """One quantized layer of a folder. `parameters` are those of our method, scales and zero points [out, groups] or
    one column for all; where none of our methods keeps the same values, `weight` alone, float32 [out, in]."""

    name: str
    shape: tuple[int, int]  # [out, in]
    parameters: Mapping[str, Read]

    def __post_init__(self) -> None:
        if 0 in self.shape:
            raise CheckpointError(f"{self.name} holds no weights; fetch the folder again.")


ReadLayer = Callable[[str, Mapping[str, Tensor]], SourceLayer]  # name, its tensors by their names in it


@dataclass(frozen=True)
class Scheme:
    """What a folder says of all its quantized layers."""

    format: str  # as sentences call it
    method: str  # ours, of vlm.layers.quant.methods
    parts: tuple[str, ...]  # names in a layer of all the tensors that it may have
    required: tuple[str, ...]  # those that each layer has
    read: ReadLayer
    group_size: int | None = None  # None: a scale a channel
    exact: bool = True  # does our method keep the same values?
    dropped: tuple[str, ...] = ()  # how names of tensors end that are not needed
    notes: tuple[str, ...] = field(default=())  # what is otherwise here, in words
    folds: bool = False  # does its program fold scales of layers' inputs into what comes before?


def check_shape(layer: str, name: str, tensor: Tensor, *shapes: tuple[int, ...]) -> None:
    """Raises CheckpointError for a tensor of none of these shapes."""
    if tuple(tensor.shape) not in shapes:
        allowed = " or ".join(str(list(shape)) for shape in shapes)
        raise CheckpointError(
            f"{layer}.{name} has shape {list(tensor.shape)}, its weight needs {allowed}; fetch the folder again."
        )


def number_of_groups(layer: str, in_features: int, group_size: int | None) -> int:
    """Returns the number of groups along the inputs. Raises CheckpointError where groups do not divide them."""
    if group_size is None:
        return 1
    if group_size <= 0 or in_features % group_size:
        raise CheckpointError(
            f"{layer} has {in_features} inputs, which groups of {group_size} weights do not divide; give the"
            " unquantized model."
        )
    return in_features // group_size


def unpacked(packed: Tensor, bits: int) -> Tensor:
    """Unpacks int32 [R, C] -> uint8 [R, C · 32 / bits], the lowest bits first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((packed[..., None] >> shifts) & (2**bits - 1)).to(torch.uint8).flatten(-2)


def channel_scale(layer: str, scale: Tensor, out_features: int) -> Tensor:
    """Returns a scale of the tensor or of each channel as [out, 1] float32."""
    check_shape(layer, "weight_scale", scale, (out_features, 1), (out_features,), (1, 1), (1,), ())
    return scale.float().reshape(-1, 1).expand(out_features, 1)


def eight_bits(layer: str, tensors: Mapping[str, Tensor], method: str) -> SourceLayer:
    """Returns a layer whose values [out, in] have a type of their own, e4m3 or int8, with a scale of the tensor or of
    each channel. Raises CheckpointError for a weight of another type or shape."""
    weight, dtype = tensors["weight"], FP8 if method == "fp8" else torch.int8
    if weight.dtype != dtype or weight.dim() != 2:
        raise CheckpointError(
            f"{layer}.weight is {weight.dtype} of shape {list(weight.shape)}, its quantization needs a matrix of"
            f" {dtype}; fetch the folder again."
        )
    out, in_features = weight.shape
    scale = channel_scale(layer, tensors["weight_scale"], out)
    return SourceLayer(layer, (out, in_features), {"weight": lambda: weight, "weight_scale": lambda: scale})


def order_of(layer: str, group_index: Tensor, groups: int) -> Tensor | None:
    """Returns the order int32 [in] in which inputs of a group lie side by side, of each input's group; None where they
    do already. Raises CheckpointError for groups of several sizes."""
    size, index = len(group_index) // groups, group_index.long()
    if index.min() < 0 or not torch.equal(index.bincount(minlength=groups), torch.full((groups,), size)):
        raise CheckpointError(f"{layer} has groups of several sizes, which are not read; give the unquantized model.")
    order = index.argsort(stable=True)
    return None if torch.equal(order, torch.arange(len(order))) else order.int()


def input_scale(layer: str, tensors: Mapping[str, Tensor]) -> dict[str, Read]:
    """Returns the reader of a static scale of the inputs. Raises CheckpointError for one that is not of the tensor."""
    check_shape(layer, "input_scale", tensors["input_scale"], (1,), (), (1, 1))
    return {"input_scale": lambda: tensors["input_scale"].float().reshape(1)}


def own(settings: Mapping[str, Any], name: str, default: Any) -> Any:
    """Returns a setting; the default where it is absent or null."""
    value = settings.get(name)
    return default if value is None else value
