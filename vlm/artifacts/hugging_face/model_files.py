"""What is seen of a model before its weights are read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from vlm.artifacts.files import load_json
from vlm.errors import CheckpointError

WEIGHTS = (r"model.*\.safetensors(\.index\.json)?", r"pytorch_model.*\.bin(\.index\.json)?")
MOST_NAMES = 10_000  # of a folder's; a model has fewer


@dataclass(frozen=True)
class ModelFiles:
    """What is seen of a model before its weights are read."""

    name: str  # as a sentence calls it
    names: frozenset[str] = frozenset()  # of the folder's or repository's files and folders
    config: Mapping[str, Any] = field(default_factory=dict)  # of its config.json; empty where there is none
    path: Path | None = None  # None: on the Hub, or a configuration alone

    @classmethod
    def from_path(cls, path: Path) -> ModelFiles:
        """Raises CheckpointError for a folder that may not be read."""
        try:
            entries = islice(path.iterdir(), MOST_NAMES) if path.is_dir() else ()
            names = frozenset(entry.name for entry in entries)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
        return cls(str(path), names, read_object(path / "config.json"), path)

    def read(self, name: str) -> dict[str, Any]:
        """Returns a JSON object of the folder, {} where it is not there or damaged."""
        return read_object(self.path / name) if self.path else {}

    def holds(self, *patterns: str) -> bool:
        """Says whether a name matches one of the regular expressions as a whole."""
        return any(re.fullmatch(pattern, name) for pattern in patterns for name in self.names)

    @property
    def is_file(self) -> bool:
        return self.path is not None and self.path.is_file()

    @property
    def suffix(self) -> str:
        return self.path.suffix.lower() if self.is_file and self.path else ""

    @property
    def architectures(self) -> list[str]:
        names = self.config.get("architectures")
        return [str(name) for name in names] if isinstance(names, list) else []

    @property
    def has_weights(self) -> bool:
        return self.holds(*WEIGHTS) or str(self.config.get("transformers_weights")) in self.names


def read_object(path: Path) -> dict[str, Any]:
    """Returns a JSON object from a file, {} for anything else."""
    try:
        value = load_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
