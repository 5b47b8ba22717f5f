"""NeMo's (IA)³ of a T5 -> the folder that PEFT saves for the same scales, under the names of Hugging Face's T5.

Liu et al. (arXiv:2205.05638); NVIDIA NeMo, megatron_t5_adapter_model.py and parallel_adapters.py: a vector scales each
layer's keys, values, and what its feed-forward layer's second product takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from llm_engines.converters.nemo.weights import read_weights
from vlm.artifacts.files import atomic_dir
from vlm.errors import CheckpointError, listed

ADAPTER = "adapter_config.json"
SCALES = re.compile(r"(encoder|decoder):model\.layers\.(\d+)\.(\w+:\w+)_infused_adapter\.scalers")
# a layer's modules and their adapters, by side -> Hugging Face's modules
MODULES = {
    "encoder": {"self_attention:key": "0.SelfAttention.k", "self_attention:value": "0.SelfAttention.v",
                "mlp:mlp": "1.DenseReluDense.wo"},
    "decoder": {"self_attention:key": "0.SelfAttention.k", "self_attention:value": "0.SelfAttention.v",
                "inter_attention:key": "1.EncDecAttention.k", "inter_attention:value": "1.EncDecAttention.v",
                "mlp:mlp": "2.DenseReluDense.wo"},
}  # fmt: skip
# PEFT's configuration of the same; the rest is its default
SETTINGS = {
    "peft_type": "IA3", "task_type": "SEQ_2_SEQ_LM", "target_modules": ["k", "v", "wo"], "feedforward_modules": ["wo"],
    "fan_in_fan_out": False, "inference_mode": True,
}  # fmt: skip


@dataclass(frozen=True)
class AdapterFolder:
    path: Path


def is_here(config: Mapping[str, Any]) -> bool:
    """Says whether a configuration is of scales that are beside a T5."""
    return "MegatronT5" in (target := str(config.get("target"))) and ("InfusedAdapter" in target or "IA3" in target)


def convert(folder: Path, config: Mapping[str, Any], out: Path) -> AdapterFolder:
    """Writes the scales of an archive's content into a folder at `out`, whole or not at all. Raises CheckpointError for
    what is missing, damaged, unsafe or no scales."""
    state = read_weights(folder, config, lambda name: 1)
    names = {name: _peft_name(name) for name in state}
    if strays := [name for name, theirs in names.items() if theirs is None or state[name].ndim != 1]:
        raise CheckpointError(f"{folder} holds {listed(strays)}, which are no scales of a T5's layers.")
    if not names:
        raise CheckpointError(
            f"{folder} holds no scales; give the .nemo file that NeMo wrote at the end of the tuning."
        )
    scales = {str(theirs): _column(str(theirs), state[name]) for name, theirs in names.items()}
    with atomic_dir(out, _is_ours, "folder of an adapter", CheckpointError) as draft:
        save_file(scales, draft / "adapter_model.safetensors")
        settings = SETTINGS | {"base_model_name_or_path": str(config.get("language_model_path") or "")}
        (draft / ADAPTER).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return AdapterFolder(out)


def _is_ours(out: Path) -> bool:
    return (out / ADAPTER).is_file()


def _peft_name(name: str) -> str | None:
    """Returns what PEFT calls a vector; None for what is none."""
    match = SCALES.fullmatch(name)
    module = match and MODULES[match[1]].get(match[3])
    return f"base_model.model.{match[1]}.block.{match[2]}.layer.{module}.ia3_l" if match and module else None


def _column(name: str, scales: Tensor) -> Tensor:
    """Returns a vector in PEFT's shape: a column scales what comes out, a row what goes in."""
    return scales.float().reshape((1, -1) if ".wo." in name else (-1, 1)).contiguous()
