"""What a folder or file is by the look of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.native.checkpoint import Checkpoint, is_checkpoint
from vlm.artifacts.native.engine_dir import EngineDir, is_engine
from vlm.registry.catalogs import configs_of, converter_of, family, match_family

if TYPE_CHECKING:
    from vlm.config import VisionConfig
    from vlm.registry.spec import FamilySpec


def kind_of(path: str | Path) -> str | None:
    """Returns what a folder or file is by the look of it: "engine", "checkpoint", a converter's name ("fairseq") or
    "hf"; None for any other and a missing path. Raises nothing."""
    path = Path(path)
    if is_engine(path):
        return "engine"
    if is_checkpoint(path):
        return "checkpoint"
    if os.path.exists(path) and (converter := converter_of(path)) is not None:
        return converter.name
    return "hf" if os.path.isfile(path / "config.json") else None


def family_of(path: Path, kind: str) -> FamilySpec | None:
    """Returns the family of an engine, a checkpoint or a Hugging Face folder, before anything of it is loaded; None:
    its converter alone can tell. Raises ConfigError, CheckpointError and EngineError."""
    if kind == "engine":
        return family(EngineDir.without_weights(path).family)
    if kind == "checkpoint":
        return family(Checkpoint.open(path).family)
    return match_family(HFFolder(path).config, path) if kind == "hf" else None


def vision_of(path: Path, kind: str) -> VisionConfig | None:
    """Returns how a checkpoint or a Hugging Face folder reads images, before it is converted; None: it takes none, or
    its converter alone can tell. Raises ConfigError and CheckpointError."""
    from vlm.convert.roles import role_configs
    from vlm.convert.values import invalid_values

    with invalid_values(path):
        if kind == "checkpoint":
            return configs_of(Checkpoint.open(path)).visual
        if kind == "hf":
            config = HFFolder(path).config
            return role_configs(match_family(config, path), config).visual
    return None
