"""Weights of the model that an adapter's folder has a copy of -> whether an engine has the same.

PEFT saves the head of an adapter that adds to it, which nothing has trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from vlm.artifacts.native.engine_dir import EngineDir
from vlm.convert.adapters.placing import PlacedAdapter
from vlm.convert.adapters.trained_tensors import Replacement
from vlm.errors import CheckpointError, listed

ROUNDED = 2**-7  # as much as a bfloat16 can be away
SMALL = 1e-6  # float16 has few digits of such numbers


def check_frozen(adapter: PlacedAdapter, folder: Path, engine: EngineDir) -> None:
    """Raises CheckpointError for copies of weights that are others in the engine."""
    if others := [
        f"{role}.{name}"
        for role, tensors in adapter.tensors.items()
        for name, copies in tensors.items()
        if not all(_is_same(copy, _whole(engine, role, name)) for copy in copies)
    ]:
        raise CheckpointError(
            f"the adapter {folder} adds to weights of its own ({listed(others, 3)}), which are others than this"
            f" model's; merge it: vlm convert MODEL -o OUT --merge-lora {folder}"
        )


def _whole(engine: EngineDir, role: str, name: str) -> Tensor | None:
    """Returns a tensor of all ranks, filled up where their parts are; None where it is quantized."""
    parts = list(_parts(engine, role, name))
    return torch.cat(parts) if parts and all(part.is_floating_point() for part in parts) else None


def _parts(engine: EngineDir, role: str, name: str) -> Iterator[Tensor]:
    rank = 0
    while f"{role}/rank{rank}.safetensors" in engine.manifest.files:
        tensors = engine.weights(role, rank=rank)
        if name in tensors:
            yield tensors[name]
        rank += 1


def _is_same(copy: Replacement, weight: Tensor | None) -> bool:
    if weight is None or weight.shape[1:] != copy.values.shape[1:] or len(weight) < len(copy.values):
        return False
    weight = weight[: len(copy.values)].float()
    return torch.allclose(copy.of(weight), weight, rtol=ROUNDED, atol=SMALL)
