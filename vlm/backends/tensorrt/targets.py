"""What a plan is built for: compute capabilities (`sm80`, `sm89`), and the library that can build for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlm.backends.tensorrt.library import FULL, PIP, RTX, Library
from vlm.config import BuildConfig
from vlm.errors import EngineError, listed

if TYPE_CHECKING:
    import torch

OLDEST_DEFAULT = 80  # Ampere: the first with bfloat16
OLDEST_FP8 = 89  # Ada
HOPPER = "sm90"


def this_gpu(device: torch.device | None = None) -> str | None:
    """Returns the compute capability of a CUDA device (None: the current one); None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm{major}{minor}"


def for_this_gpu(build: BuildConfig) -> BuildConfig:
    """Returns a build that will run here. Raises EngineError where it could not."""
    if (gpu := this_gpu()) is None:
        raise EngineError(
            "the backend tensorrt runs on a CUDA GPU, this machine has none; use the backend torch or onnxruntime, or"
            " build for another machine: vlm build MODEL -o OUT --backend tensorrt --target sm89."
        )
    return replace(build, target=(gpu,))


def library_for(targets: tuple[str, ...], gpu: str | None, libraries: Mapping[str, Library]) -> Library:
    """Returns the library to build with: the full one where both are, unless only RTX can build for what is asked.
    Raises EngineError where none is."""
    if not libraries:
        raise EngineError(
            f"the backend tensorrt needs TensorRT, which is not installed; {PIP[RTX]} builds for GeForce and RTX GPUs"
            f" on any machine, {PIP[FULL]} for the GPU of this machine, data center ones included."
        )
    full_can = gpu is not None and set(targets) <= {gpu}
    order = (FULL, RTX) if full_can else (RTX, FULL)
    return next(libraries[name] for name in order if name in libraries)


def resolve_targets(library: Library, targets: tuple[str, ...], gpu: str | None) -> tuple[str, ...]:
    """Returns what to build for; `()`: this machine's GPU, or without one all that the library knows from Ampere on.

    Raises EngineError for what the library cannot build for here.
    """
    if library.name == FULL:
        return _of_the_gpu(targets, gpu)
    names = library.capabilities
    newer = tuple(name for name in names if int(name[2:]) >= OLDEST_DEFAULT)
    targets = targets or ((gpu,) if gpu else newer)
    if unknown := [name for name in targets if name not in names]:
        raise EngineError(
            f"{library.name} {library.version} does not build for {listed(unknown)}, it builds for {listed(names, 20)};"
            f" leave that out, or use the full TensorRT on a machine with such a GPU: {PIP[FULL]}."
        )
    return tuple(name for name in names if name in targets)


def _of_the_gpu(targets: tuple[str, ...], gpu: str | None) -> tuple[str, ...]:
    if gpu is None:
        raise EngineError(
            "tensorrt builds only on a machine with an NVIDIA GPU, there is none here;"
            f" build there, or without a GPU by tensorrt_rtx: {PIP[RTX]}."
        )
    if others := [name for name in targets if name != gpu]:
        raise EngineError(
            f"tensorrt builds for the GPU that it runs on ({gpu}), not for {listed(others)};"
            f" build on a machine with such a GPU, or by tensorrt_rtx: {PIP[RTX]}."
        )
    return (gpu,)


def check_types(targets: tuple[str, ...], build: BuildConfig) -> None:
    """Raises EngineError for bfloat16 and for weights in fp8 on GPUs without them."""
    if build.dtype == "bfloat16" and (older := _before(OLDEST_DEFAULT, targets)):
        raise EngineError(f"{listed(older)} does not compute in bfloat16; build it with float16, or for newer GPUs.")
    if build.quantization == "fp8" and (older := _before(OLDEST_FP8, targets)):
        raise EngineError(
            f"{listed(older)} does not compute in fp8; build it with quantization int8 or w8a8, or for GPUs from"
            f" sm{OLDEST_FP8} on: target sm{OLDEST_FP8},sm120.",
            settings=("quantization", "target"),
        )


def _before(oldest: int, targets: tuple[str, ...]) -> list[str]:
    return [name for name in targets if int(name[2:]) < oldest]


def set_targets(library: Library, config: Any, targets: tuple[str, ...]) -> None:
    """Tells a builder's configuration; the full library needs no telling."""
    if library.name == FULL:
        return
    config.num_compute_capabilities = len(targets)
    for index, name in enumerate(targets):
        config.set_compute_capability(getattr(library.module.ComputeCapability, name.upper()), index)
