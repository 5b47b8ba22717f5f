"""The folder of an adapter that PEFT has saved -> what it changes of each module of its model."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlm.artifacts.archives import check_no_archive
from vlm.artifacts.files import read_json
from vlm.artifacts.hugging_face.hf_folder import read_pickle
from vlm.artifacts.hugging_face.peft_folder import FILE, TUNED_PROMPTS, WEIGHTS, WHAT, adapter_tensors
from vlm.convert.adapters.peft_config import PeftKind, invalid_settings, names_of
from vlm.convert.adapters.peft_ia3 import PeftIa3
from vlm.convert.adapters.peft_lora import PeftLora
from vlm.convert.adapters.trained_tensors import COPY, UNREAD, trained_name
from vlm.errors import CheckpointError, ConfigError, cut, listed
from vlm.layers.adapters.base import AdapterWeights

KINDS: Mapping[str, type[PeftKind]] = {"LORA": PeftLora, "IA3": PeftIa3}  # by `peft_type`
BESIDE = "non_lora_trainables.bin"  # weights that were trained as they are: a projector
PREFIX = "base_model.model."  # of names in what PEFT saves


@dataclass(frozen=True)
class PeftAdapter:
    """What the folder of an adapter holds, by names in Hugging Face's model."""

    base: str  # the model that it was made for, which may be empty
    modules: Mapping[str, AdapterWeights]  # what is changed of each
    trained: Mapping[str, Tensor]  # tensors that take the place of the model's own, or are the same


@dataclass(frozen=True)
class FolderTensors:
    """The tensors of an adapter's folder, told apart by their names."""

    by_module: dict[str, dict[str, Tensor]]  # parts of the adapter
    trained: dict[str, Tensor]  # that take the place of the model's own
    frozen: dict[str, Tensor]  # weights that the adapter only adds to
    strays: list[str]  # names of none of these

    @classmethod
    def read(cls, folder: Path, kind: type[PeftKind]) -> FolderTensors:
        """Raises CheckpointError for a part of the adapter that is there twice."""
        found, tensors = cls(defaultdict(dict), {}, {}, []), adapter_tensors(folder)
        for name in (name for name in tensors if not UNREAD.search(name)):
            bare = name.removeprefix(PREFIX)
            if (match := kind.tensors.fullmatch(bare)) is not None:
                module, part = match[1], match[2]
                if part in (parts := found.by_module[module]):
                    raise CheckpointError(f"{folder} holds {module}.{part} under two names; save the adapter again.")
                parts[part] = tensors[name]
            elif (copy := COPY.fullmatch(bare)) is not None:
                found.frozen[f"{copy[1]}.weight"] = tensors[name]
            elif (own := trained_name(bare)) is not None:
                found.trained[own] = tensors[name]
            else:
                found.strays.append(name)
        return found


def read_settings(folder: Path) -> dict[str, Any]:
    """Returns what an adapter's folder says of it. Raises ConfigError for what is no such folder."""
    check_no_archive(folder, str(folder), ConfigError)
    if os.path.isfile(folder):  # of any name, however long
        raise ConfigError(f"{folder} is a file and no {WHAT}; give the folder that holds its {FILE}.")
    return read_json(folder / FILE, ConfigError, WHAT)


def read_peft(folder: Path, *, merging: bool = False) -> PeftAdapter:
    """Returns the adapter of a folder; `merging`: with tensors that take the place of the model's own, which no request
    can name. Others are frozen weights, which it only adds to. Raises ConfigError and CheckpointError."""
    values = read_settings(folder)
    if (kind := str(values.get("peft_type"))) not in KINDS:
        merged = "merge one that changes weights into its model with PEFT (merge_and_unload(), save_pretrained())"
        instead = f"give it with --prompt-table {folder}" if kind in TUNED_PROMPTS else f"{merged} and load that"
        raise ConfigError(
            f"{folder} is a PEFT adapter of type {cut(kind)}; {' and '.join(KINDS)} are what can be loaded: {instead}."
        )
    found = FolderTensors.read(folder, KINDS[kind])
    config = KINDS[kind].read(folder, values, found.by_module)
    if found.strays:
        raise CheckpointError(
            f"{folder} holds {listed(found.strays)}, which is no {config.name} of a linear layer; merge the adapter"
            " into its model with PEFT (merge_and_unload(), save_pretrained()) and load that."
        )
    _check_trained(folder, values, found.trained, merging=merging)
    if not found.by_module:
        raise CheckpointError(f"{folder} holds no tensors; save the adapter again.")
    modules = {module: _weights(folder, config, module, parts) for module, parts in found.by_module.items()}
    base = str(values.get("base_model_name_or_path") or "")
    own = _checked(folder, found.trained | read_beside(folder) if merging else {}, modules)
    return PeftAdapter(base, modules, own | _checked(folder, found.frozen, {}))


def _check_trained(folder: Path, values: Mapping[str, Any], trained: Mapping[str, Tensor], *, merging: bool) -> None:
    """Raises ConfigError for tensors of the model itself where they are not merged, CheckpointError for those that are
    not there."""
    with invalid_settings(folder, "adapter"):
        saved = names_of(values.get("modules_to_save") or [], "modules_to_save")
    if merging:
        # PEFT goes by the ends of names
        if missing := [each for each in saved if not any(f"{each}." in name for name in trained)]:
            raise CheckpointError(
                f"{folder} lacks its modules_to_save {listed(missing)}; fetch or save it again, or, where its model has"
                f" no such modules, take their names out of its {FILE}."
            )
        return
    beside = [BESIDE] if (folder / BESIDE).exists() else []
    # those of `bias` are known by their tensors: a model may have none
    if own := [f"modules_to_save {listed(saved)}"] * bool(saved) + beside or list(trained):
        raise ConfigError(
            f"the adapter {folder} has weights of the model itself ({listed(own, 3)}), which are of all requests; merge"
            f" it: vlm convert MODEL -o OUT --merge-lora {folder}"
        )


def read_beside(folder: Path) -> dict[str, Tensor]:
    """Returns the tensors that LLaVA's scripts save beside an adapter, of a pickle of tensors alone; none where there
    is no such file. Raises CheckpointError."""
    if not (path := folder / BESIDE).exists():
        return {}
    tensors = {trained_name(name.removeprefix(PREFIX)): values for name, values in read_pickle(path).items()}
    if None in tensors:
        raise CheckpointError(f"{path} holds parts of an adapter, which belong into {WEIGHTS}; save it again.")
    return {str(name): values for name, values in tensors.items()}


def _checked(folder: Path, trained: dict[str, Tensor], modules: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns tensors that are numbers, of other modules' weights than the adapter changes. Raises CheckpointError."""
    for name, values in trained.items():
        if not values.float().isfinite().all():
            raise CheckpointError(f"{folder}: {name} has values that are no numbers; fetch or save it again.")
        if name.removesuffix(".weight") in modules:
            raise CheckpointError(f"{folder} both replaces {name} and adds to it; merge it with PEFT.")
    return trained


def _numbers(name: str, values: Tensor) -> Tensor:
    """Returns a tensor in float32, in memory of its own: its file may change. Raises ValueError for one that is not of
    floats, all of them finite."""
    if not values.is_floating_point():
        raise ValueError(f"has values of type {str(values.dtype).removeprefix('torch.')} (its {name})")
    if not (values := values.to(torch.float32, copy=True)).isfinite().all():
        raise ValueError(f"has values that are no numbers (its {name})")
    return values


def _weights(folder: Path, config: PeftKind, module: str, parts: Mapping[str, Tensor]) -> AdapterWeights:
    try:
        return config.weights(module, {name: _numbers(name, values) for name, values in parts.items()})
    except ValueError as error:
        raise CheckpointError(f"{folder}: {module} {error}; fetch or save it again.") from None
