"""A Hugging Face folder whose layers are quantized: which those are, and its tensors as weight rules know them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.hugging_face.model_files import ModelFiles
from vlm.artifacts.hugging_face.quantization_files import quantizations, recipe_folds
from vlm.convert.quantized import awq, bitsandbytes, compressed_tensors, gptq, modelopt
from vlm.convert.quantized.layer import Scheme, SourceLayer
from vlm.errors import CheckpointError, ConfigError, VlmWarning, listed

SCHEMES: Mapping[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "compressed-tensors": compressed_tensors.scheme,
    "awq": awq.scheme,
    "gptq": gptq.scheme,
    "bitsandbytes": bitsandbytes.scheme,
    "modelopt": modelopt.scheme,
}
PACKED_TYPES = (torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2)


class StandIns(Mapping[str, Tensor]):
    """A folder's tensors, but for each quantized layer one `weight` [out, in] on torch's meta device."""

    def __init__(self, tensors: Mapping[str, Tensor], layers: Mapping[str, SourceLayer], others: list[str]):
        self._tensors, self._layers = tensors, layers
        self._names = dict.fromkeys((*others, *layers))

    def __getitem__(self, name: str) -> Tensor:
        layer = self._layers.get(name)
        return self._tensors[name] if layer is None else torch.empty(layer.shape, device="meta")

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True)
class QuantizedSource:
    """A quantized folder's scheme, its layers by the names of the weights that they stand for, and its tensors."""

    scheme: Scheme
    layers: Mapping[str, SourceLayer]
    tensors: StandIns

    @property
    def names(self) -> dict[str, Any]:
        """Returns the tensors' names by themselves: what renames tensors says by them which is which."""
        return {name: name for name in self.tensors}


def read_quantized(folder: HFFolder) -> QuantizedSource | None:
    """Returns a folder's quantized layers; None where it has none. Raises ConfigError for a way of quantization that is
    not read, CheckpointError with a layer's tensor that is missing or of another shape; warns of what is otherwise
    here."""
    kinds = quantizations(ModelFiles.from_path(folder.path))
    if len(kinds) > 1:
        raise ConfigError(
            f"{folder.path} has two quantizations ({listed(kinds)}); keep the configuration of the one that its weights"
            " are in."
        )
    for kind, settings in kinds.items():
        scheme = SCHEMES[kind](settings)
        scheme = replace(scheme, folds=scheme.folds or recipe_folds(folder.path))
        source = _source(scheme, folder.tensors)
        for note in scheme.notes:
            warnings.warn(f"{folder.path} is quantized ({scheme.format}): {note}.", VlmWarning, stacklevel=2)
        return source
    return None


def _source(scheme: Scheme, tensors: Mapping[str, Tensor]) -> QuantizedSource:
    parts = _parts(scheme, tensors)
    if not parts:
        raise CheckpointError(
            f"the configuration says that the model is quantized ({scheme.format}), but no tensor is; fetch it again."
        )
    layers = {}
    for name, own in parts.items():
        if absent := [f"{name}.{part}" for part in scheme.required if part not in own]:
            raise CheckpointError(
                f"a quantized layer lacks {listed(absent)} ({scheme.format}); fetch the folder again."
            )
        layers[f"{name}.weight"] = scheme.read(name, own)
    used = {f"{name}.{part}" for name, own in parts.items() for part in own}
    others = [name for name in tensors if name not in used and not name.endswith(scheme.dropped or ("\0",))]
    return QuantizedSource(scheme, layers, StandIns(tensors, layers, others))


def _parts(scheme: Scheme, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Returns the tensors of each quantized layer by their names in it."""
    marks = [part for part in scheme.parts if part != "weight"]
    layers = {name.removesuffix(f".{mark}") for name in tensors for mark in marks if name.endswith(f".{mark}")}
    layers |= {n.removesuffix(".weight") for n in tensors if n.endswith(".weight") and tensors[n].dtype in PACKED_TYPES}
    return {
        layer: {part: tensors[f"{layer}.{part}"] for part in scheme.parts if f"{layer}.{part}" in tensors}
        for layer in sorted(layers)
    }
