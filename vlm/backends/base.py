"""What a backend is: what builds an engine's files of a model's networks, and what loads them to be run.

A package brings one by an entry point of the group `vlm.backends` (docs/adding-a-backend.md). The class is light: what
it takes to build or run is imported where it is used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from vlm.config import BuildConfig, EngineLimits, RuntimeConfig, VisionConfig
from vlm.config.build import DTYPES

if TYPE_CHECKING:
    import torch

    from vlm.artifacts.native.engine_dir import EngineDir
    from vlm.artifacts.native.roles import RoleWeights
    from vlm.artifacts.progress import Progress
    from vlm.parallel.collectives import Ranks
    from vlm.registry.role_configs import RoleConfigs

GROUPED = ("int4", "int4-asymmetric")  # quantizations with a scale a group of weights


class Layout(Enum):
    """How what a backend loads keeps keys and values."""

    PAGED = "paged"  # torch modules, by role, over a pool of blocks
    SLOTS = "slots"  # compiled graphs (vlm.backends.graphs.io), by name, over a linear cache a sequence


class Preference(NamedTuple):
    """Whether `auto` takes a backend, and why or why not in words."""

    takes: bool
    reason: str


@dataclass(frozen=True)
class BuildJob:
    """What an engine's files are built of, and where they go."""

    folder: Path
    parts: Mapping[tuple[str, int], RoleWeights]  # the weights by role and rank, in the engine's type; whole ones: 0's
    configs: RoleConfigs
    build: BuildConfig
    limits: EngineLimits
    progress: Progress | None = None
    # of build.quantization: the build's, or those of weights that are quantized already
    quantization_options: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1  # ranks' files that are written at the same time

    @property
    def is_split(self) -> bool:
        """Says whether ranks have parts of the weights already, for a backend that `splits` alone."""
        return any(rank for _, rank in self.parts)

    @property
    def roles(self) -> dict[str, RoleWeights]:
        """Returns the weights of whole networks by role."""
        return {role: weights for (role, rank), weights in self.parts.items() if rank == 0}


@dataclass(frozen=True)
class BuiltFiles:
    """What a build has written below its folder."""

    files: dict[str, dict[str, Any]]  # as vlm.artifacts.native.manifest.file_entries lists them
    built_for: dict[str, Any] = field(default_factory=dict)  # as vlm.artifacts.native.manifest.Manifest has it


class Backend(ABC):
    """One way to build and run engines. Its methods may be called in any order and keep nothing."""

    name: ClassVar[str]  # the entry point's
    description: ClassVar[str]  # what it runs on, in a few words
    layout: ClassVar[Layout]
    devices: ClassVar[tuple[str, ...]]  # types of torch's devices
    dtypes: ClassVar[tuple[str, ...]] = DTYPES
    quantizations: ClassVar[tuple[str, ...]] = ()  # of weights
    grouped: ClassVar[tuple[str, ...]] = GROUPED  # those of them that a build's group_size is for
    splits: ClassVar[bool] = False  # can ranks have parts of a network?
    takes_quantized: ClassVar[bool] = False  # does it take weights that were quantized before the build?
    takes_image_sizes: ClassVar[bool] = True  # does it encode images of several sizes with one network?
    takes_targets: ClassVar[bool] = False  # is an engine tied to compute capabilities?
    loads_data_alone: ClassVar[bool] = False  # may files be loaded before it is known that they are as they were built?
    rank: ClassVar[int] = 0  # `auto` asks those of higher ranks first

    # --- what may be asked for ---
    def encodes(self, vision: VisionConfig | None) -> bool:
        """Says whether its engines read the images of a model; None: of one that takes none."""
        return self.takes_image_sizes or vision is None or vision.network_size is not None

    def errors(self, build: BuildConfig) -> list[str]:
        """Returns every reason, in words, why it never builds an engine of this type and quantization."""
        if build.dtype in self.dtypes:
            return []
        return [f"{self.name} does not compute in {build.dtype}, build it with {' or '.join(self.dtypes)}"]

    def default_dtype(self, device: str) -> str:
        """Returns the computing type that is taken on a type of device where the user names none."""
        return "bfloat16" if device == "cuda" else "float32"

    def preference(self, device: str, dtype: str | None) -> Preference | None:
        """Says whether `auto` takes it on a type of device. None: it is never taken unless it is named."""
        return None

    # --- building ---
    def check_build(self, build: BuildConfig) -> None:
        """Raises EngineError where this machine cannot build for it: said before a long conversion."""
        return None

    def for_this_machine(self, build: BuildConfig) -> BuildConfig:
        """Returns the build made definite for what runs here, as an engine in the cache is. Raises EngineError where
        it could not run."""
        return build

    def cache_key(self) -> dict[str, str]:
        """Returns what else, besides the build, its engines in the cache depend on: versions by name."""
        return {}

    @abstractmethod
    def write(self, job: BuildJob) -> BuiltFiles:
        """Writes what it runs below the job's folder. Raises EngineError."""

    # --- running ---
    def resolve_device(self, name: str) -> torch.device:
        """Returns the device that `auto`, `cpu`, `cuda` or `cuda:N` is. Raises InputError for one that is not there or
        that it does not run on."""
        from vlm.backends.devices import resolve_device

        return resolve_device(name)

    def fit_runtime(self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> RuntimeConfig:
        """Returns the runtime within what the engine's files can be asked for. Raises EngineError where this machine
        cannot run them."""
        return runtime

    @abstractmethod
    def load(self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> Mapping[str, Any]:
        """Loads the networks of `engine.loaded_roles`, as its layout says: torch modules by role, or
        vlm.backends.graphs.network.Network by the graphs' names. Raises EngineError."""

    def load_part(
        self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device, ranks: Ranks
    ) -> Mapping[str, Any]:
        """Loads one rank's part of the networks; of a backend that `splits` alone. Raises EngineError."""
        raise NotImplementedError
