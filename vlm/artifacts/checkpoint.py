"""Our checkpoint: per role a config.json and its weights in safetensors, the processor's files beside them.

config.json  visual/config.json  visual/rank0.safetensors  decoder/...  processor/...
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.files import atomic_dir, canonical_json, load_json, read_json
from vlm.errors import CheckpointError, listed

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vlm.artifacts.weights import TensorSource

FORMAT_VERSION = 1
WHAT = "checkpoint of vlm"
Progress = Callable[[str, int, int], None]  # description, bytes done, bytes in all


@dataclass(frozen=True)
class RoleWeights:
    """One network of a checkpoint or engine about to be written."""

    model: str  # a ModelRef's name
    config: dict[str, Any]
    source: TensorSource
    quantized: frozenset[str] = frozenset()  # names of what a quantization keeps in types of its own

    @property
    def dtype(self) -> torch.dtype:
        """Returns the narrowest type that holds every floating tensor, but for what is quantized."""
        layout = {name: entry for name, entry in self.source.layout.items() if name not in self.quantized}
        return replace(self.source, layout=layout).dtype


@dataclass(frozen=True)
class Checkpoint:
    """Converted weights, layout and names ours, values and dtype the source's; quantized ones are the parameters of
    their method (vlm.layers.quant)."""

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Raises CheckpointError for what is no checkpoint, or one of another format version, or incomplete."""
        path = Path(path)
        manifest = read_json(path / "config.json", CheckpointError, WHAT)
        if not {"format_version", "family", "roles"} <= set(manifest) or not isinstance(manifest["roles"], dict):
            raise CheckpointError(f"{path} is no {WHAT}: its config.json is another program's; convert it first.")
        if manifest["format_version"] != FORMAT_VERSION:
            version = manifest["format_version"]
            raise CheckpointError(
                f"{path} has format version {version}, this vlm reads {FORMAT_VERSION}; convert it again."
            )
        checkpoint = cls(path, manifest)
        files = [p for role in checkpoint.roles for p in (path / role / "config.json", checkpoint.weight_file(role))]
        if absent := [str(p.relative_to(path)) for p in files if not p.is_file()]:
            raise CheckpointError(f"{path} lacks {listed(absent)}; convert it again.")
        return checkpoint

    @property
    def family(self) -> str:
        return self.manifest["family"]

    @property
    def roles(self) -> dict[str, str]:
        """Role -> model name."""
        return self.manifest["roles"]

    @property
    def generation(self) -> dict[str, Any]:
        return self.manifest.get("generation", {})

    @property
    def source(self) -> str:
        """Where the weights come from, in words."""
        return self.manifest.get("source", "")

    @property
    def quantization(self) -> str | None:
        """Returns the method that keeps the weights; None: they are as they are."""
        return self.manifest.get("quantization")

    @property
    def quantization_options(self) -> dict[str, Any]:
        """Returns what is said of the quantization beside its name, as a Manifest has it."""
        return self.manifest.get("quantization_options", {})

    @property
    def processor_files(self) -> tuple[Path, ...]:
        return tuple(sorted(p for p in (self.path / "processor").glob("*") if p.is_file()))

    def weight_file(self, role: str, rank: int = 0) -> Path:
        return self.path / role / f"rank{rank}.safetensors"

    def config(self, role: str) -> dict[str, Any]:
        """Returns what the model's configuration class takes in `from_dict`."""
        return read_json(self.path / role / "config.json", CheckpointError, WHAT)

    def weights(self, role: str, rank: int = 0) -> Mapping[str, Tensor]:
        """Returns tensors by our names, mapped from disk when looked up."""
        from vlm.artifacts.weights import TensorFiles

        return TensorFiles([self.weight_file(role, rank)])


def write_checkpoint(
    out: Path,
    *,
    family: str,
    roles: Mapping[str, RoleWeights],
    generation: dict[str, Any],
    source: str,
    processor_files: Sequence[Path] = (),
    quantization: str | None = None,
    quantization_options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """Writes a checkpoint whole or not at all; the same input gives the same bytes. An older checkpoint is replaced.
    `quantization`, and its options: what keeps the matrices in the roles' tensors."""
    manifest = {
        "format_version": FORMAT_VERSION,
        "family": family,
        "roles": {role: weights.model for role, weights in roles.items()},
        "generation": generation,
        "source": source,
        "dtype": dtype_of(roles),
        "mapping": {"tp": 1, "pp": 1},
        "quantization": quantization,
        **({"quantization_options": dict(quantization_options)} if quantization_options else {}),
    }
    with atomic_dir(out, is_checkpoint, WHAT, CheckpointError) as draft:
        parts = {(role, 0): weights for role, weights in roles.items()}
        write_roles(draft, parts, "Writing the checkpoint", progress)
        for role, weights in roles.items():
            (draft / role / "config.json").write_text(canonical_json(weights.config), encoding="utf-8")
        copy_processor(processor_files, draft)
        (draft / "config.json").write_text(canonical_json(manifest), encoding="utf-8")
    return Checkpoint.open(out)


def write_roles(
    draft: Path, parts: Mapping[tuple[str, int], RoleWeights], description: str, progress: Progress | None
) -> dict[str, dict[str, Any]]:
    """Writes `<role>/rank<rank>.safetensors` for every (role, rank) -> relative path to {sha256, size}. Progress counts
    bytes."""
    from vlm.artifacts.weights import write_tensors

    num_bytes, total = 0, sum(weights.source.nbytes for weights in parts.values())

    def advance(count: int) -> None:
        nonlocal num_bytes
        num_bytes += count
        if progress:
            progress(description, num_bytes, total)

    files = {}
    for (role, rank), weights in parts.items():
        (draft / role).mkdir(exist_ok=True)
        name = f"{role}/rank{rank}.safetensors"
        files[name] = write_tensors(draft / name, weights.source, advance)
    return files


def copy_processor(files: Sequence[Path], draft: Path) -> list[Path]:
    """Copies them to `processor/`; no file, no directory."""
    copies = [draft / "processor" / file.name for file in files]
    if copies:
        (draft / "processor").mkdir()
    for file, copy in zip(files, copies, strict=True):
        shutil.copyfile(file, copy)
    return copies


def dtype_of(roles: Mapping[str, RoleWeights]) -> str:
    """Returns the narrowest type that holds every role's floating weights."""
    import functools

    import torch

    dtypes = [weights.dtype for weights in roles.values()]
    return str(functools.reduce(torch.promote_types, dtypes)).removeprefix("torch.")


def is_checkpoint(path: Path) -> bool:
    """Says whether a directory is a checkpoint of ours, of whatever format version."""
    try:
        manifest = load_json(path / "config.json")
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and {"format_version", "family", "roles"} <= set(manifest)
