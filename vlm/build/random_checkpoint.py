"""Checkpoints of random weights, to measure."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlm.artifacts.hugging_face.generation_config import generation_defaults
from vlm.artifacts.native.checkpoint import Checkpoint, write_checkpoint
from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.weights import TensorSource
from vlm.config import Config
from vlm.config.build import DTYPES
from vlm.convert.roles import module_layout, role_configs
from vlm.errors import ConfigError, listed
from vlm.registry.catalogs import architecture, match_family, model_spec
from vlm.registry.spec import Role

INITIALIZER_RANGE = 0.02  # of most configurations


def random_checkpoint(
    arch: str | dict[str, Any],
    out: Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    initializer_range: float = INITIALIZER_RANGE,
    processor_files: Sequence[Path] = (),
) -> Checkpoint:
    """Returns a checkpoint of a published shape (`nougat-base`), or of a Hugging Face configuration, with random
    weights.

    Norm weights are 1, all else is normal with a deviation of `initializer_range`. The same seed gives the same bytes.
    It has the processor's files that are given, or none.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}, allowed are {listed(DTYPES)}.")
    spec, hf = (match_family(arch), arch) if isinstance(arch, dict) else architecture(arch)
    configs = role_configs(spec, hf)
    options = {"seed": seed, "dtype": dtype, "std": initializer_range}
    roles = {
        name: RoleWeights(role.model, configs[name].to_dict(), _random_source(role, configs[name], name, **options))
        for name, role in spec.roles.items()
    }
    label = arch if isinstance(arch, str) else spec.name
    return write_checkpoint(
        Path(out),
        family=spec.name,
        roles=roles,
        generation=generation_defaults(hf),
        source=f"{label}, random weights, seed {seed}",
        processor_files=processor_files,
    )


def _random_source(role: Role, config: Config, role_name: str, *, seed: int, dtype: str, std: float) -> TensorSource:
    kind: torch.dtype = getattr(torch, dtype)
    layout = module_layout(model_spec(role.model), config)
    # a table of integers is computed, not learned: the module must not keep it in its state
    assert all(each.is_floating_point for each, _ in layout.values()), role.model

    def draw(name: str) -> Tensor:
        shape = layout[name][1]
        if len(shape) == 1 and name.endswith("weight"):  # of a norm
            return torch.ones(shape, dtype=kind)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{role_name}/{name}".encode()))
        return torch.empty(shape).normal_(std=std, generator=generator).to(kind)

    return TensorSource({name: (kind, shape) for name, (_, shape) in layout.items()}, draw)
