"""What may run a TensorRT plan: kept in the manifest, compared with this machine before a plan is even opened."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vlm.backends.tensorrt.library import FULL, PIP, RTX, installed
from vlm.backends.tensorrt.targets import HOPPER, this_gpu
from vlm.config import BuildConfig, Config
from vlm.errors import EngineError, listed

if TYPE_CHECKING:
    import torch

KEY = "tensorrt"  # in the manifest's built_for


@dataclass(frozen=True)
class PlanInfo(Config):
    """The library that built the plans, for which GPUs, within which limits."""

    library: str
    version: str
    targets: tuple[str, ...]
    plans: dict[str, str]  # graph -> its plan, relative to the engine
    limits: dict[str, int]  # as PlanLimits has them

    def built_for(self) -> dict[str, Any]:
        """Returns the manifest's entry `built_for`."""
        return {"devices": ["cuda"], KEY: self.to_dict() | {"targets": list(self.targets)}}

    @classmethod
    def from_manifest(cls, built_for: Mapping[str, Any]) -> PlanInfo:
        """Reads a manifest's entry. Raises EngineError where it says nothing of TensorRT."""
        if KEY not in built_for:
            raise EngineError(
                "the engine's manifest does not say which TensorRT built it; build it again with `vlm build`."
            )
        return cls.from_dict(built_for[KEY])


@dataclass(frozen=True)
class Machine:
    """What runs here."""

    gpu: str | None  # its compute capability, "sm90"
    versions: dict[str, str]  # library -> version, of those installed
    rtx_capabilities: tuple[str, ...] = ()  # what tensorrt_rtx builds for, where it is installed

    @classmethod
    def this(cls, device: torch.device | None = None) -> Machine:
        libraries = installed()
        versions = {name: library.version for name, library in libraries.items()}
        return cls(this_gpu(device), versions, libraries[RTX].capabilities if RTX in libraries else ())


def check_runnable(info: PlanInfo, build: BuildConfig, machine: Machine, path: str, source: str) -> None:
    """Raises EngineError with every reason why this machine cannot run the plans of the engine at `path`, and the
    command that builds them for it. source: the model that it was built from, in words"""
    if machine.gpu is None:
        raise EngineError(
            f"{path} holds TensorRT plans for {listed(info.targets)}, this machine has no CUDA GPU; run it where there"
            f" is one, or build it for the CPU: {rebuild_command(build, path, 'torch')} (MODEL was {source})."
        )
    if reasons := list(_reasons(info, machine, machine.gpu)):
        command = rebuild_command(build, path, "tensorrt", (machine.gpu,))
        first = f"{PIP[pip]} and then " if (pip := _missing(machine, machine.gpu)) else ""
        raise EngineError(
            f"{path} does not run here: {'; '.join(reasons)}; rebuild it: {first}{command} (MODEL was {source})."
        )


def _reasons(info: PlanInfo, machine: Machine, gpu: str) -> Iterator[str]:
    if gpu not in info.targets:
        yield f"its plans are for {listed(info.targets)}, this GPU is {gpu}"
    if info.library == RTX and gpu == HOPPER:
        yield f"tensorrt_rtx does not run on {HOPPER} (H100, H200)"
    if info.library not in machine.versions:
        yield f"it was built by {info.library} {info.version}, which is not installed"
    elif (version := machine.versions[info.library]) != info.version:
        yield f"it was built by {info.library} {info.version}, installed is {version}"


def _missing(machine: Machine, gpu: str) -> str | None:
    """Returns the library to install before anything can be built for this GPU; None: none."""
    return None if FULL in machine.versions or gpu in machine.rtx_capabilities else FULL


def rebuild_command(build: BuildConfig, path: str, backend: str, target: tuple[str, ...] = ()) -> str:
    """Returns the `vlm build` that makes the same engine for another machine."""
    other = replace(build, backend=backend, target=target)
    return shlex.join(["vlm", "build", "MODEL", "-o", path, *other.options()])
