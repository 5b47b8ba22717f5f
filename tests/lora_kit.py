"""Folders of adapters as PEFT writes them, made without it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

Q = "model.layers.0.self_attn.q_proj"  # of a LLaMA


def adapter_folder(path: Path, tensors: Mapping[str, Tensor], **config) -> Path:
    """A folder with these tensors, of rank 2 unless the configuration says otherwise."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 8, **config}))
    save_file(dict(tensors), path / "adapter_model.safetensors")
    return path


def matrices(a: Tensor, b: Tensor, module: str = Q) -> dict[str, Tensor]:
    """The tensors of one module."""
    return {f"base_model.model.{module}.lora_A.weight": a, f"base_model.model.{module}.lora_B.weight": b}


def random_adapter(path: Path, *modules: str, seed: int, width: int = 32) -> Path:
    """An adapter that changes square layers by a lot."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    tensors: dict[str, Tensor] = {}
    for module in modules:
        tensors |= matrices(draw(2, width), draw(width, 2), module)
    return adapter_folder(path, tensors)
