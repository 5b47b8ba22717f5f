"""The folder of an adapter that PEFT has saved -> what it changes of each module of its model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vlm.artifacts.files import read_json
from vlm.artifacts.hf_folder import read_pickle
from vlm.artifacts.weights import TensorFiles
from vlm.convert.adapters.peft_config import FILE, PeftKind
from vlm.convert.adapters.peft_ia3 import PeftIa3
from vlm.convert.adapters.peft_lora import PeftLora
from vlm.errors import CheckpointError, ConfigError, listed
from vlm.layers.adapters.base import AdapterWeights

KINDS: Mapping[str, type[PeftKind]] = {"LORA": PeftLora, "IA3": PeftIa3}  # by `peft_type`
WHAT = "folder of a PEFT adapter"
WEIGHTS = "adapter_model.safetensors"
BESIDE = "non_lora_trainables.bin"  # weights that were trained as they are: a projector
PREFIX = "base_model.model."  # of names in what PEFT saves


def read_peft(folder: Path) -> tuple[str, dict[str, AdapterWeights]]:
    """Returns the name of the model that an adapter was made for, which may be empty, and what it changes of each
    module, by the modules' names in Hugging Face's model. Raises ConfigError and CheckpointError."""
    values = read_json(folder / FILE, ConfigError, WHAT)
    if (kind := str(values.get("peft_type"))) not in KINDS:
        raise ConfigError(f"{folder} is a PEFT adapter of type {kind}; {' and '.join(KINDS)} are what can be loaded.")
    tensors, strays = _tensors(folder), []
    by_module: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name in tensors:
        if (match := KINDS[kind].tensors.fullmatch(name.removeprefix(PREFIX))) is None:
            strays.append(name)
        else:
            by_module[match[1]][match[2]] = tensors[name]
    config = KINDS[kind].read(folder, values, by_module)
    if (folder / BESIDE).exists():
        raise CheckpointError(
            f"{folder} has weights beside the adapter ({BESIDE}); merge both into their model with the scripts that"
            " made them and load the folder that this writes."
        )
    if strays:
        raise CheckpointError(
            f"{folder} holds {listed(strays)}, which is no {config.name} of a linear layer; merge the adapter into its"
            " model with PEFT (merge_and_unload(), save_pretrained()) and load that."
        )
    if not by_module:
        raise CheckpointError(f"{folder} holds no tensors; save the adapter again.")
    base = str(values.get("base_model_name_or_path") or "")
    return base, {module: _weights(folder, config, module, parts) for module, parts in by_module.items()}


def _tensors(folder: Path) -> Mapping[str, Tensor]:
    """Returns an adapter's tensors; a pickle, which older ones are, is read as one of tensors alone."""
    pickle = folder / "adapter_model.bin"
    return (
        read_pickle(pickle) if pickle.exists() and not (folder / WEIGHTS).exists() else TensorFiles([folder / WEIGHTS])
    )


def _weights(folder: Path, config: PeftKind, module: str, parts: Mapping[str, Tensor]) -> AdapterWeights:
    try:
        if wrong := [name for name, values in parts.items() if not values.isfinite().all()]:
            raise ValueError(f"has values that are no numbers (its {wrong[0]})")
        return config.weights(module, parts)
    except ValueError as error:
        raise CheckpointError(f"{folder}: {module} {error}; fetch or save it again.") from None
