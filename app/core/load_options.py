"""How a command loads its models."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.artifacts.native.engine_dir import EngineDir, is_engine
from vlm.artifacts.progress import Progress
from vlm.backends.cuda_context import start_context
from vlm.backends.devices import devices_of
from vlm.backends.installed import checked_backend
from vlm.build.store import LIMITS
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import NAME_A_PLACE, InputError, VlmError, listed
from vlm.options import option, options_of
from vlm_app.core.processes import garbage

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline

# of an engine's build what its loading may ask for; the rest is built by vlm build alone
BUILD = ("dtype", "backend", *LIMITS)
RUNTIME = tuple(name for name, own in options_of(RuntimeConfig).items() if own.cli)


@dataclass(frozen=True)
class AdapterFolders:
    """Adapters that are called as their folders are."""

    lora_dir: tuple[str, ...] = option(
        (), "Instead of --lora: folders of adapters, which requests call as the folders are called (equal names: with"
        " what tells their paths apart, r1/last), or number from 0 on; repeat it, or: --lora-dir a b.",
        metavar="FOLDER...",
    )  # fmt: skip

    @property
    def named(self) -> tuple[str, ...]:
        """Returns NAME=FOLDER of each; equal names have as much of the paths before them as tells them apart."""
        paths = [Path(os.path.abspath(folder).replace("=", "-")) for folder in self.lora_dir]  # = would end a name
        names = (_name_among(path, paths) for path in paths)
        return tuple(f"{name}={folder}" for name, folder in zip(names, self.lora_dir, strict=True))


def _name_among(path: Path, paths: list[Path]) -> str:
    """Returns the shortest end of a path that no other one has; of one that is there twice its last part."""
    for count in range(1, len(path.parts) + 1):
        end = path.parts[-count:]
        if sum(other.parts[-count:] == end for other in paths) == 1:
            return str(Path(*end))
    return path.name


@dataclass(frozen=True)
class LoadOptions:
    """Fields of BuildConfig and RuntimeConfig that were given; the others are an engine's own, or the defaults."""

    build: Mapping[str, Any] = field(default_factory=dict)
    runtime: Mapping[str, Any] = field(default_factory=dict)
    encoder_only: bool = False  # the decoder's weights stay on the disk

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoadOptions:
        """Raises ConfigError for a value that no engine has, InputError for adapters that are named in two ways."""
        if "" in values.get("lora_dir", ()):
            raise InputError(f"lora_dir is empty; {NAME_A_PLACE}.", settings=("lora_dir",))
        if (adapters := AdapterFolders(values.get("lora_dir", ())).named) and "lora" in values:
            raise InputError("adapters are given by --lora and by --lora-dir; give all of them by one of these.")
        values = {**values, "lora": adapters} if adapters else values
        build, runtime = ({name: values[name] for name in names if name in values} for names in (BUILD, RUNTIME))
        fields = {name: value for name, value in build.items() if (name, value) != ("backend", "auto")}
        checked_backend(BuildConfig(**fields))
        RuntimeConfig(**runtime)
        return cls(build, runtime)

    @property
    def device(self) -> str:
        """Returns the name of the device, of several the first."""
        if (devices := self.runtime.get("devices")) is not None:
            return devices_of(devices)[0]
        return self.runtime.get("device", RuntimeConfig.device)

    @property
    def dtype(self) -> str | None:
        return self.build.get("dtype")

    @property
    def adapters(self) -> list[str]:
        """Returns the names of the adapters, in the order of their numbers."""
        return list(self.runtime_config().lora_folders)

    @property
    def adapter(self) -> dict[str, str]:
        """Returns the adapter of inputs that name none, by what `Pipeline.generate` calls it: a lone one."""
        return {"lora": self.adapters[0]} if len(self.adapters) == 1 else {}

    def check_one_adapter(self, use: str) -> None:
        """Raises InputError for several adapters, where nothing says which input has which; `use`: what is done."""
        if len(names := self.adapters) > 1:
            raise InputError(f"--lora names {listed(names)}; {use} with one adapter: give one of them.")

    def check_base_alone(self, wanted_by: str) -> None:
        """Raises InputError for adapters, where Hugging Face's base model is run beside this one."""
        if self.runtime_config().lora:
            raise InputError(f"{wanted_by} compares with the base model; leave --lora out.")

    def runtime_config(self, **defaults: Any) -> RuntimeConfig:
        """Returns how an engine is run; `defaults` hold for what was not given."""
        return RuntimeConfig(**{**defaults, **self.runtime})

    def with_adapters_at(self, locate: Callable[[str], str | Path]) -> LoadOptions:
        """Returns the options with the folder of each adapter where `locate` says that it is."""
        folders = self.runtime_config().lora_folders
        if not folders:
            return self
        lora = tuple(f"{name}={locate(str(folder))}" for name, folder in folders.items())
        return replace(self, runtime={**self.runtime, "lora": lora})

    def overridden_by(self, other: LoadOptions) -> LoadOptions:
        """Returns these options with all that the others say."""
        build, runtime = {**self.build, **other.build}, {**self.runtime, **other.runtime}
        return LoadOptions(build, runtime, self.encoder_only or other.encoder_only)

    def resolve(self, model: str | Path, on: str, progress: Progress | None = None) -> Path:
        """Returns the engine that `load` takes `on` cpu or cuda, built where it is not yet."""
        from vlm.build.store import resolve

        return resolve(model, on=on, progress=progress, **self.build)

    def load(self, model: str | Path, progress: Progress | None = None, **defaults: Any) -> Pipeline:
        """Loads a model as `vlm.load` does; `defaults` are RuntimeConfig's, for what was not given."""
        if self._backend(model) == "torch":
            start_context(self.device)
        with garbage.importing():
            import vlm.api.pipeline
        fields = {"runtime": self.runtime_config(**defaults), "encoder_only": self.encoder_only}
        with garbage.rarely():
            pipeline = vlm.load(model, progress=progress, **fields, **self.build)
        garbage.exempt()
        return pipeline

    def _backend(self, model: str | Path) -> str:
        """Returns what runs a model, as far as that is known before anything is read but an engine's manifest."""
        if "backend" not in self.build and is_engine(Path(model)):
            with contextlib.suppress(VlmError):  # it is told when the engine is opened
                return EngineDir.without_weights(Path(model)).build.backend
        return self.build.get("backend", BuildConfig.backend)
