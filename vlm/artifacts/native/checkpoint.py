"""Our checkpoint: per role a config.json and its weights in safetensors, the processor's files beside them.

config.json  visual/config.json  visual/rank0.safetensors  decoder/...  processor/...

One that is split among ranks has a file for each: decoder/rank0.safetensors  decoder/rank1.safetensors  ...
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.files import atomic_dir, canonical_json, check_replaceable, load_json, read_json
from vlm.artifacts.hugging_face.generation_config import check_tokens
from vlm.artifacts.native.manifest import is_mapping
from vlm.artifacts.native.roles import RoleWeights, copy_processor, dtype_of, parts_of, write_roles
from vlm.artifacts.progress import Progress
from vlm.errors import CheckpointError, VlmError, listed, shown

if TYPE_CHECKING:
    from torch import Tensor

Check = Callable[[str, Mapping[str, RoleWeights]], None]  # looks at a family's networks, by role, raising a VlmError

FORMAT_VERSION = 1
WHAT = "checkpoint of vlm"


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
                f"{path} has format version {shown(version)}, this vlm reads {FORMAT_VERSION}; convert it again."
            )
        _check_values(path, manifest)
        checkpoint = cls(path, manifest)
        if not is_mapping(checkpoint.mapping, len(list(path.glob("*/rank*.safetensors"))) or 1):
            raise CheckpointError(f"{path} lacks files of the ranks that its config.json names; convert it again.")
        files = [path / role / "config.json" for role in checkpoint.roles]
        files += [checkpoint.weight_file(role, rank) for role, rank in checkpoint.parts]
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
    def mapping(self) -> dict[str, int]:
        """Returns the ranks that its weights are split among, as vlm.config.BuildConfig.mapping has them."""
        return self.manifest.get("mapping", {"tp": 1, "pp": 1})

    @property
    def is_split(self) -> bool:
        return self.mapping["tp"] * self.mapping["pp"] > 1

    @property
    def split_options(self) -> list[str]:
        """Returns the words after `vlm convert` and `vlm build` that ask for the same ranks."""
        sizes = {axis: size for axis, size in self.mapping.items() if size > 1 or axis == "encoder_tp"}
        return [word for axis, size in sizes.items() for word in (f"--{axis.replace('_', '-')}-size", str(size))]

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Returns role and rank of each file of weights."""
        return parts_of(self.roles, self.mapping)

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


def _check_values(path: Path, manifest: dict[str, Any]) -> None:
    """Raises CheckpointError and ConfigError for a checkpoint's configuration whose values no conversion writes."""
    settings = manifest.get("generation", {})
    try:
        canonical_json(manifest)
        if isinstance(settings, dict) and not isinstance(settings.get("decoder_start_token_id"), list):
            return check_tokens(settings)
    except ValueError:  # of numbers that are none
        pass
    raise CheckpointError(f"{path / 'config.json'} is damaged: it holds values that are none; convert it again.")


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
    check: Check | None = None,
    progress: Progress | None = None,
) -> Checkpoint:
    """Writes a checkpoint whole or not at all; the same input gives the same bytes. An older checkpoint is replaced.
    `quantization`, and its options: what keeps the matrices in the roles' tensors; `check` is called before anything is
    written."""
    if check is not None:
        check(family, roles)
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
    parts = {(role, 0): weights for role, weights in roles.items()}
    return write_parts(out, manifest, parts, processor_files=processor_files, progress=progress)


def write_parts(
    out: Path,
    manifest: Mapping[str, Any],
    parts: Mapping[tuple[str, int], RoleWeights],
    *,
    processor_files: Sequence[Path] = (),
    progress: Progress | None = None,
) -> Checkpoint:
    """Writes a checkpoint of the weights of each (role, rank) as `write_checkpoint` does; `manifest`: its
    config.json."""
    from vlm.artifacts.weights import write_tensors

    with atomic_dir(out, is_checkpoint, WHAT, CheckpointError) as draft:
        write_roles(draft, parts, "Writing the checkpoint", progress, write=write_tensors)
        for role, config in {role: weights.config for (role, _), weights in parts.items()}.items():
            (draft / role / "config.json").write_text(canonical_json(config), encoding="utf-8")
        copy_processor(processor_files, draft)
        (draft / "config.json").write_text(canonical_json(manifest), encoding="utf-8")
    return Checkpoint.open(out)


def check_output(out: Path) -> None:
    """Raises CheckpointError for a place that no checkpoint can be written to: said before long work."""
    check_replaceable(out.resolve(), is_checkpoint, WHAT, CheckpointError)


@contextlib.contextmanager
def scratch_beside(out: Path, what: str = WHAT, error: type[VlmError] = CheckpointError) -> Iterator[Path]:
    """Gives a folder that vanishes, on the disk where `out`, a `what`, goes: the temporary directory of the system may
    be small. Raises `error` where nothing can be written there."""
    parent = next(folder for folder in out.resolve().parents if folder.is_dir())
    try:
        scratch = tempfile.TemporaryDirectory(prefix=f".{out.name}.", suffix=".tmp", dir=parent)
    except OSError as reason:
        raise error(
            f"the {what} {out} cannot be written: {reason.strerror}; choose another place or make room there."
        ) from None
    with scratch as folder:
        yield Path(folder)


def is_checkpoint(path: Path) -> bool:
    """Says whether a directory is a checkpoint of ours, of whatever format version."""
    try:
        manifest = load_json(path / "config.json")
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and {"format_version", "family", "roles"} <= set(manifest)
