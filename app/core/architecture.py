"""`--arch`: a published shape's name or a Hugging Face config.json of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlm.artifacts.files import read_json
from vlm.errors import InputError


def read_arch(arch: str) -> str | dict[str, Any]:
    """Returns a name as it is, and of a path to a .json file the configuration in it. Raises InputError."""
    path = Path(arch)
    if path.suffix != ".json":
        return arch
    if not path.is_file():
        raise InputError(f"--arch {arch} does not exist; give a published shape or a Hugging Face config.json.")
    return read_json(path, InputError, "architecture")


def hf_config(arch: str) -> dict[str, Any]:
    """Returns the Hugging Face configuration of either; ConfigError for an unknown name."""
    from vlm.registry.catalogs import architecture

    shape = read_arch(arch)
    return shape if isinstance(shape, dict) else architecture(shape)[1]
