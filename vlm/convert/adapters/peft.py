"""The folder of a LoRA that PEFT has saved -> the weights of each module of its model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from vlm.artifacts.hf_folder import read_pickle
from vlm.artifacts.weights import TensorFiles
from vlm.convert.adapters.peft_lora import PeftConfig
from vlm.errors import CheckpointError, listed
from vlm.layers.adapters.lora import LoraWeights

WEIGHTS = "adapter_model.safetensors"
BESIDE = "non_lora_trainables.bin"  # weights that were trained as they are: a projector
# the second word of a name: which adapter, in dictionaries that were saved as they are
NAME = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.default)?\.weight")


def read_peft(folder: Path) -> tuple[PeftConfig, dict[str, LoraWeights]]:
    """Returns what an adapter adds to each module, by the modules' names in Hugging Face's model. Raises ConfigError
    and CheckpointError."""
    config, tensors = PeftConfig.read(folder), _tensors(folder)
    if (folder / BESIDE).exists():
        raise CheckpointError(
            f"{folder} has weights beside the adapter ({BESIDE}); merge both into their model with the scripts that"
            " made them and load the folder that this writes."
        )
    by_module: dict[str, dict[str, Tensor]] = defaultdict(dict)
    strays = []
    for name in tensors:
        if (match := NAME.fullmatch(name)) is None:
            strays.append(name)
        else:
            by_module[match[1]][match[2]] = tensors[name]
    if strays:
        raise CheckpointError(
            f"{folder} holds {listed(strays)}, which is no LoRA of a linear layer; merge the adapter into its model"
            " with PEFT (merge_and_unload(), save_pretrained()) and load that."
        )
    if not by_module:
        raise CheckpointError(f"{folder} holds no tensors; save the adapter again.")
    return config, {module: _weights(folder, config, module, parts) for module, parts in by_module.items()}


def _tensors(folder: Path) -> Mapping[str, Tensor]:
    """Returns an adapter's tensors; a pickle, which older ones are, is read as one of tensors alone."""
    pickle = folder / "adapter_model.bin"
    return (
        read_pickle(pickle) if pickle.exists() and not (folder / WEIGHTS).exists() else TensorFiles([folder / WEIGHTS])
    )


def _weights(folder: Path, config: PeftConfig, module: str, parts: dict[str, Tensor]) -> LoraWeights:
    """Returns a module's matrices in float32. Raises CheckpointError where they do not fit each other or the
    configuration."""
    if missing := {"A", "B"} - parts.keys():
        raise CheckpointError(f"{folder} lacks lora_{missing.pop()} of {module}; fetch or save it again.")
    a, b, rank = parts["A"], parts["B"], config.rank_of(module)
    if not (a.ndim == b.ndim == 2 and a.shape[0] == b.shape[1] == rank):
        raise CheckpointError(
            f"{folder}: {module} has shapes {list(a.shape)} and {list(b.shape)}, its configuration says rank"
            f" {rank}; fetch or save it again."
        )
    return LoraWeights(a.float(), b.float() * config.scale_of(module))
