"""The manifest of an engine directory: what it is, how it was built, and what its files must be."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from vlm.artifacts.files import canonical_json, read_json
from vlm.artifacts.hashes import PIECES, file_entry
from vlm.config import BuildConfig, Config
from vlm.errors import EngineError, listed, shown

FORMAT_VERSION = 1
WHAT = "engine directory"
MANIFEST = "manifest.json"
REBUILD = "rebuild it from its checkpoint or model folder with `vlm build`"


@dataclass(frozen=True)
class Manifest(Config):
    """What an engine is, what it was built with, on and for, and the SHA-256 of its files."""

    format_version: int
    vlm_version: str
    family: str
    roles: dict[str, dict[str, Any]]  # role -> {"model", "config"}
    backend: str
    limits: dict[str, int | None]  # max_batch_size, max_seq_len, max_encoder_input_len
    dtype: str
    mapping: dict[str, int]  # as BuildConfig.mapping has it
    quantization: str | None
    generation: dict[str, Any]
    source: str  # where the weights come from, in words
    built_on: dict[str, str]  # python, torch, device, platform
    built_for: dict[str, Any]  # what may run it: {"devices"}, and under its backend's name what that knows of it
    files: dict[str, dict[str, Any]]  # relative path -> what vlm.artifacts.hashes.file_entry says
    # {"group_size", "ignore"}, where they were given, the layers that have parameters of vlm.layers.quant.inputs, and
    # those of vlm.layers.quant.producer.FOLDED
    quantization_options: dict[str, Any] = field(default_factory=dict)

    @property
    def build(self) -> BuildConfig:
        """What builds the same again."""
        values: dict[str, Any] = {"backend": self.backend, "quantization": self.quantization, **self.limits}
        values |= {f"{axis}_size": size for axis, size in self.mapping.items()}  # tp_size, …
        names = {field.name for field in fields(BuildConfig)}
        options = {name: value for name, value in self.quantization_options.items() if name in names}
        values |= options | ({"ignore": tuple(options["ignore"])} if "ignore" in options else {})
        return BuildConfig(dtype=self.dtype, target=self._target, **values)

    @property
    def _target(self) -> tuple[str, ...]:
        """The GPUs that it was built for, where its backend says them in its own entry."""
        entry = self.built_for.get(self.backend)
        return tuple(entry.get("targets", ())) if isinstance(entry, dict) else ()

    def write(self, folder: Path) -> None:
        values = self.to_dict()
        (folder / MANIFEST).write_text(canonical_json(values | {"sha256": _seal(values)}), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises EngineError for a manifest that is missing, damaged, edited or of another format."""
        values = read_json(folder / MANIFEST, EngineError, WHAT)
        if (version := values.get("format_version")) != FORMAT_VERSION:
            raise EngineError(
                f"{folder} has engine format {shown(version)}, this vlm reads {FORMAT_VERSION}; {REBUILD}."
            )
        if not _is_sealed(values.pop("sha256", None), values):
            raise EngineError(f"{folder / MANIFEST} was edited or damaged after the build; {REBUILD}.")
        try:
            manifest = cls(**values)
        except TypeError as error:
            raise EngineError(
                f"{folder / MANIFEST} was written by another version of vlm ({error}); {REBUILD}."
            ) from None
        if invalid := manifest._invalid():
            raise EngineError(f"{folder / MANIFEST} holds values that no build writes in {listed(invalid)}; {REBUILD}.")
        return manifest

    def _invalid(self) -> list[str]:
        """Names the fields of other types than a build writes, and those that name files outside of the folder."""
        mappings = (
            "roles",
            "limits",
            "mapping",
            "generation",
            "built_on",
            "built_for",
            "files",
            "quantization_options",
        )
        errors = [name for name in mappings if not isinstance(getattr(self, name), dict)]
        texts = ("family", "backend", "dtype", "source")
        errors += [name for name in texts if not isinstance(getattr(self, name), str)]
        fine = {"roles": _is_role, "files": _is_file_entry, "limits": _is_limit, "built_for": _is_built_for}
        if not {"mapping", "files"} & set(errors) and not is_mapping(self.mapping, len(self.files)):
            errors.append("mapping")
        fields = {name: is_fine for name, is_fine in fine.items() if name not in errors}
        return errors + [
            name
            for name, is_fine in fields.items()
            if not all(is_fine(key, value) for key, value in getattr(self, name).items())
        ]


def _is_sealed(seal: Any, values: Mapping[str, Any]) -> bool:
    try:
        return seal == _seal(values)
    except ValueError:  # numbers that no JSON of ours holds
        return False


def _is_role(name: str, entry: Any) -> bool:
    fine = isinstance(entry, dict) and isinstance(entry.get("model"), str) and isinstance(entry.get("config"), dict)
    return fine and name.isidentifier()


def _is_file_entry(name: str, entry: Any) -> bool:
    fine = isinstance(entry, dict) and isinstance(entry.get("size"), int) and isinstance(entry.get("sha256"), str)
    fine = fine and isinstance(entry.get(PIECES, ""), str)
    return fine and not Path(name).is_absolute() and ".." not in Path(name).parts


def is_mapping(mapping: Any, num_files: int) -> bool:
    """Says whether a mapping has ranks, and each at least a file: as many processes would be started."""
    fine = isinstance(mapping, dict) and mapping.keys() - {"encoder_tp"} == {"tp", "pp"}
    fine = fine and all(isinstance(size, int) and size >= 1 for size in mapping.values())
    if fine and "encoder_tp" in mapping:
        fine = mapping["encoder_tp"] < mapping["tp"] and mapping["tp"] % mapping["encoder_tp"] == 0
    return fine and mapping["tp"] * mapping["pp"] <= num_files


def _is_limit(name: str, value: Any) -> bool:
    fine = value is None or (isinstance(value, int) and 0 < value < 2**63)
    return fine and name in ("max_batch_size", "max_seq_len", "max_encoder_input_len")


def _is_built_for(name: str, entry: Any) -> bool:
    targets = entry.get("targets", []) if isinstance(entry, dict) else []
    return isinstance(targets, list) and all(isinstance(target, str) for target in targets)


def _seal(values: Mapping[str, Any]) -> str:
    """Returns the manifest's hash of itself: an edited limit is found as an edited weight is."""
    return hashlib.sha256(canonical_json(values).encode()).hexdigest()


def built_on() -> dict[str, str]:
    """Returns this machine's software and device, for the manifest."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device,
        "platform": platform.platform(),
    }


def file_entries(folder: Path, paths: list[Path]) -> dict[str, dict[str, Any]]:
    """Returns the manifest's entries of files that are written already."""
    return {path.relative_to(folder).as_posix(): file_entry(path) for path in paths}
