"""Which matrices of a Hugging Face folder the quantized layers are, and whether compressed-tensors can say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlm.artifacts.files import check_replaceable, load_json
from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.convert.quantized.source import read_quantized
from vlm.convert.roles import ConvertedRole, convert_roles, named_tensors, role_configs
from vlm.convert.rules import Step
from vlm.errors import CheckpointError, ConfigError
from vlm.layers.quant.quantization import Quantization
from vlm.registry.catalogs import match_family
from vlm.registry.weights.quantized import QuantizedLayer, quantized_layers

WHAT = "folder of compressed-tensors"


@dataclass(frozen=True)
class OriginalRole:
    """One network of a folder as the rules fill it, and the names of its sources in the folder."""

    name: str
    converted: ConvertedRole
    names: Mapping[str, str]

    def layers(self, quantization: Quantization) -> dict[str, QuantizedLayer]:
        """Returns the layers that a quantization changes, by their paths."""
        return quantized_layers(self.converted.spec, self.converted.config, quantization.of_role(self.name))

    def steps(self) -> Iterator[tuple[str, Step, list[str]]]:
        """Yields each target, what fills it, and its sources in the folder."""
        for target, step in self.converted.outcome.steps.items():
            yield target, step, [self.names[name] for name in step.sources]


def original_roles(folder: HFFolder) -> list[OriginalRole]:
    """Returns the networks of a folder. Raises CheckpointError for one that is quantized."""
    if read_quantized(folder) is not None:
        raise CheckpointError(f"{folder.path} is quantized already; give the unquantized folder that it was made from.")
    spec = match_family(folder.config, folder.path)
    configs = role_configs(spec, folder.config)
    converted = convert_roles(named_tensors(folder.tensors, spec), spec, configs, folder.path)
    names: Mapping[str, Any] = named_tensors({name: name for name in folder.tensors}, spec)  # type: ignore
    return [
        OriginalRole(role, each, {n: names[own] for n, own in each.names.items()}) for role, each in converted.items()
    ]


def check_exportable(folder: HFFolder, quantization: Quantization) -> None:
    """Raises ConfigError for layers that a quantization changes and Hugging Face's classes do not keep as matrices
    [out, in] of a Linear, as GPT-2's; CheckpointError for a folder that is quantized."""
    check_roles(folder, original_roles(folder), quantization)


def check_roles(folder: HFFolder, roles: list[OriginalRole], quantization: Quantization) -> None:
    """Raises what `check_exportable` does, of networks that were read."""
    paths = {role.name: role.layers(quantization) for role in roles}
    others = {
        f"{role.name}.{target.removesuffix('.weight')}": sources[0]
        for role in roles
        for target, step, sources in role.steps()
        if target.endswith(".weight") and target.removesuffix(".weight") in paths[role.name]
        if not _is_linear(step, [folder.tensors[name] for name in sources])
    }
    if others:
        kept, are_all = ",".join((*quantization.ignore, *others)), len(others) == sum(map(len, paths.values()))
        remedy = "" if are_all else f", or leave such layers as they are: --ignore '{kept}'"
        more = "" if len(others) == 1 else f" (and {len(others) - 1} more)"
        raise ConfigError(
            f"{next(iter(others.values()))}{more} is no Linear in Hugging Face's model, so compressed-tensors does not"
            f" load it quantized; leave --export out{remedy}."
        )


def _is_linear(step: Step, sources: list[Tensor]) -> bool:
    if step.transposes or len(step.targets) > 1 or any(source.dim() != 2 for source in sources):
        return False
    return step.moves_rows([(len(source), source.shape[1]) for source in sources])


def row_order(step: Step, sizes: list[int]) -> Tensor:
    """Returns where the rows of a step's sources, one after the other, are in what it makes of them."""
    return step.run(list(torch.arange(sum(sizes))[:, None].split(sizes)))[0].flatten().argsort()


def check_export_folder(folder: Path) -> None:
    """Raises CheckpointError for a place that no export can be written to: said before long work."""
    check_replaceable(Path(folder).resolve(), is_export, WHAT, CheckpointError)


def is_export(path: Path) -> bool:
    """Says whether a folder is an older export."""
    try:
        settings = load_json(path / "config.json").get("quantization_config")
    except (OSError, ValueError, AttributeError):
        return False
    return isinstance(settings, dict) and settings.get("quant_method") == "compressed-tensors"
