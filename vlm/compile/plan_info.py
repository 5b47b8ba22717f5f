"""What may run a TensorRT plan: kept in the manifest, compared with this machine before a plan is even opened."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from vlm.compile.trt_library import FULL, PIP, RTX
from vlm.compile.trt_targets import HOPPER
from vlm.config import BuildConfig, Config
from vlm.errors import EngineError, listed

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
        """The manifest's entry."""
        return {"devices": ["cuda"], KEY: self.to_dict() | {"targets": list(self.targets)}}

    @classmethod
    def of(cls, built_for: Mapping[str, Any]) -> PlanInfo:
        """Of a manifest's entry; EngineError where it says nothing of TensorRT."""
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

    @classmethod
    def this(cls) -> Machine:
        from vlm.compile.trt_library import installed
        from vlm.compile.trt_targets import this_gpu

        return cls(this_gpu(), {name: library.version for name, library in installed().items()})


def check_runnable(info: PlanInfo, build: BuildConfig, machine: Machine, source: str, path: str) -> None:
    """EngineError with every reason why this machine cannot run the plans of the engine at `path`, and the command
    that builds them for it from `source`, the model."""
    if machine.gpu is None:
        raise EngineError(
            f"{path} holds TensorRT plans for {listed(info.targets)}, this machine has no CUDA GPU; run it where there"
            f" is one, or build for the CPU: {rebuild_command(build, source, path, 'torch')}"
        )
    if reasons := list(_reasons(info, machine, machine.gpu)):
        command = rebuild_command(build, source, path, "tensorrt", machine.gpu)
        first = f"{PIP[pip]} and then " if (pip := _missing(machine, machine.gpu)) else ""
        raise EngineError(f"{path} does not run here: {'; '.join(reasons)}. Rebuild it: {first}{command}")


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
    """The library to install before anything can be built for this GPU."""
    if FULL in machine.versions or (RTX in machine.versions and gpu != HOPPER):
        return None
    return FULL


def rebuild_command(build: BuildConfig, source: str, path: str, backend: str, target: str | None = None) -> str:
    """The `vlm build` that makes the same engine for another machine."""
    options = {
        "-o": path,
        "--backend": backend,
        "--target": target,
        "--dtype": build.dtype,
        "--max-batch-size": build.max_batch_size,
        "--max-seq-len": build.max_seq_len,
        "--max-encoder-input-len": build.max_encoder_input_len,
    }
    given = [word for name, value in options.items() if value is not None for word in (name, str(value))]
    return shlex.join(["vlm", "build", source, *given])
