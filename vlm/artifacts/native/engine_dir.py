"""EngineDir: the built artifact, self-contained, checked on loading.

manifest.json  visual/rank0.safetensors  decoder/rank0.safetensors  processor/...   of torch
manifest.json  visual/model.onnx  cross/model.onnx  decoder/model.onnx  processor/...   of ONNX Runtime
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.files import load_json
from vlm.artifacts.native.manifest import MANIFEST, REBUILD, WHAT, Manifest
from vlm.artifacts.native.verification import Verification
from vlm.config import BuildConfig, EngineLimits
from vlm.errors import EngineError, InputError, listed

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class EngineDir:
    """A built engine on disk."""

    path: Path
    manifest: Manifest
    limits: EngineLimits  # those it was built for, or smaller ones
    encoder_only: bool = False  # its decoder stays on the disk

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> EngineDir:
        """Raises EngineError that names the file which is missing, truncated, edited or added since the build.

        `verify=False` skips the hashes (a read of the whole engine); existence and sizes are always checked.
        """
        path = Path(path)
        if not path.is_dir():
            raise EngineError(f"{path} is no {WHAT}: there is no such folder.")
        engine = cls.without_weights(path)
        engine._check_sizes()
        if verify:
            with engine.verification() as verification:
                engine.check(verification)
        return engine

    @classmethod
    def without_weights(cls, path: Path) -> EngineDir:
        """Reads what describes an engine, whether its weights are there or not. Raises EngineError."""
        manifest = Manifest.read(path)
        return cls(path, manifest, EngineLimits.from_manifest(manifest.limits))

    @property
    def family(self) -> str:
        return self.manifest.family

    @property
    def roles(self) -> dict[str, str]:
        """Role -> model name."""
        return {role: entry["model"] for role, entry in self.manifest.roles.items()}

    @property
    def generates(self) -> bool:
        """Says whether it has a decoder, and loads it."""
        return "decoder" in self.manifest.roles and not self.encoder_only

    @property
    def loaded_roles(self) -> dict[str, str]:
        """Role -> model name of what is loaded."""
        return {role: model for role, model in self.roles.items() if self.generates or role != "decoder"}

    @property
    def build(self) -> BuildConfig:
        """What it was built for, or limited to since."""
        return replace(self.manifest.build, **self.limits.to_manifest())

    def limited(self, **limits: int | None) -> EngineDir:
        """Returns the engine as if it had been built for smaller limits; None keeps its own."""
        return replace(self, limits=self.limits.within(**limits))

    def without_decoder(self) -> EngineDir:
        """Returns the engine as if it had been built of its encoders alone. Raises InputError where there is none."""
        check_encodes(self.family, self.roles)
        return replace(self, encoder_only=True)

    @property
    def generation(self) -> dict[str, Any]:
        return self.manifest.generation

    @property
    def processor_dir(self) -> Path | None:
        """The tokenizer's and image processor's files; None for an engine of random weights."""
        folder = self.path / "processor"
        return folder if folder.is_dir() else None

    def config(self, role: str) -> dict[str, Any]:
        """Returns what the model's configuration class takes in `from_dict`."""
        return self.manifest.roles[role]["config"]

    def weights(self, role: str, *, device: Any = "cpu", rank: int = 0) -> dict[str, Tensor]:
        """Returns tensors by module name, on `device`; on the CPU they are the mapped file (copy on write): nothing is
        read."""
        from vlm.artifacts.weights import TensorFiles

        return TensorFiles([self.path / role / f"rank{rank}.safetensors"], device, EngineError).read()

    def verification(self) -> Verification:
        """Begins to hash the files, for `check`."""
        return Verification(self.path, self.manifest.files)

    def check(self, verification: Verification) -> None:
        """Waits for the hashes. Raises EngineError that names the files which were edited."""
        self._refuse([f"{name} was edited" for name in verification.edited()])

    def _check_sizes(self) -> None:
        errors = [
            reason for name, entry in self.manifest.files.items() if (reason := self._mismatch(name, entry["size"]))
        ]
        errors += [f"{name} was added" for name in self._unlisted()]
        self._refuse(errors)

    def _mismatch(self, name: str, size: int) -> str | None:
        path = self.path / name
        if not path.is_file():
            return f"{name} is missing"
        actual = path.stat().st_size
        if actual < size:
            return f"{name} is truncated ({actual:,} of {size:,} bytes)"
        return f"{name} was edited ({actual:,} bytes, built with {size:,})" if actual > size else None

    def _unlisted(self) -> list[str]:
        """Returns the files put beside the built ones: another tokenizer file would change the output unseen."""
        folders = sorted({Path(name).parts[0] for name in self.manifest.files if len(Path(name).parts) > 1})
        paths = (p for folder in folders for p in sorted((self.path / folder).rglob("*")) if p.is_file())
        names = (p.relative_to(self.path).as_posix() for p in paths if not p.name.startswith("."))
        return [name for name in names if name not in self.manifest.files]

    def _refuse(self, errors: list[str]) -> None:
        if errors:
            raise EngineError(f"the engine {self.path} is not as it was built: {listed(errors)}; {REBUILD}.")


def is_engine(path: Path) -> bool:
    """Says whether a directory is an engine of ours, a damaged manifest included."""
    try:
        values = load_json(path / MANIFEST)
    except OSError:
        return False
    except ValueError:
        return any(next(path.glob(f"*/{name}"), None) for name in ("rank0.safetensors", "model.onnx"))
    return isinstance(values, dict) and {"format_version", "vlm_version", "roles"} <= set(values)


def check_encodes(family: str, roles: Iterable[str]) -> None:
    """Raises InputError for a model of these roles that is a decoder alone."""
    if set(roles) <= {"decoder"}:
        raise InputError(f"{family} is a decoder alone, there is no encoder to load; take a model that has one.")
