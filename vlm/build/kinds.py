"""What a folder or file is by the look of it."""

from __future__ import annotations

import os
from pathlib import Path

from vlm.artifacts.checkpoint import is_checkpoint
from vlm.artifacts.engine_dir import is_engine
from vlm.registry.catalogs import converter_of


def kind_of(path: str | Path) -> str | None:
    """What a folder or file is by the look of it: "engine", "checkpoint", a converter's name ("fairseq") or "hf"; None
    for any other and a missing path. Raises nothing."""
    path = Path(path)
    if is_engine(path):
        return "engine"
    if is_checkpoint(path):
        return "checkpoint"
    if os.path.exists(path) and (converter := converter_of(path)) is not None:
        return converter.name
    return "hf" if os.path.isfile(path / "config.json") else None
