"""A checkpoint -> an engine directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vlm import __version__
from vlm.artifacts.files import atomic_dir
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir, is_engine
from vlm.artifacts.native.manifest import FORMAT_VERSION, WHAT, Manifest, built_on, file_entries
from vlm.artifacts.native.roles import RoleWeights, copy_processor
from vlm.artifacts.progress import Progress
from vlm.artifacts.weights import TensorSource
from vlm.backends.base import Backend, BuildJob, BuiltFiles
from vlm.backends.installed import checked_backend
from vlm.build.limits import resolve_limits
from vlm.config import BuildConfig, Config, EngineLimits
from vlm.convert.role_weights import role_weights
from vlm.convert.values import invalid_values
from vlm.errors import CheckpointError, ConfigError, EngineError
from vlm.registry.catalogs import configs_of, family
from vlm.registry.spec import FamilySpec
from vlm.registry.weights.quantized import check_ignored


def build_engine(
    checkpoint: Checkpoint, out: Path, build: BuildConfig, *, workers: int = 1, progress: Progress | None = None
) -> EngineDir:
    """Builds a checkpoint -> an engine at `out`, written whole or not at all; an older engine there is replaced.

    A checkpoint that is quantized or split stays as it is. `workers`: ranks' files that are written at the same time.
    Raises ConfigError for limits beyond what the model allows, for another quantization and for other ranks,
    CheckpointError for weights that are damaged or that `build.dtype` cannot hold.
    """
    spec, build = family(checkpoint.family), _with_quantization(build, checkpoint)
    _check_mapping(build, checkpoint)
    with invalid_values(checkpoint.path):
        configs = configs_of(checkpoint)
        limits = resolve_limits(build, configs)
    backend = check_backend(build)
    if checkpoint.quantization is None:
        check_ignored(build.ignore, checkpoint.roles, configs)
    if checkpoint.quantization is not None and not backend.takes_quantized:
        raise EngineError(
            f"the backend {backend.name} quantizes what it builds from unquantized weights, {checkpoint.path} holds"
            f" {checkpoint.quantization}; build with backend torch, or from the unquantized model."
        )
    parts = {(role, rank): _cast(checkpoint, role, rank, configs[role], build) for role, rank in checkpoint.parts}
    options = checkpoint.quantization_options or build.quantization_options
    with atomic_dir(Path(out), is_engine, WHAT, EngineError) as draft:
        job = BuildJob(draft, parts, configs, build, limits, progress, options, workers)
        output = backend.write(job)
        others = file_entries(draft, copy_processor(checkpoint.processor_files, draft))
        files = BuiltFiles(output.files | others, output.built_for)
        _manifest(checkpoint, spec, job.roles, build=build, limits=limits, output=files).write(draft)
    return EngineDir.open(out, verify=False)


def check_backend(build: BuildConfig) -> Backend:
    """Returns what builds it. Raises ConfigError for a build that it never makes, EngineError where this machine
    cannot: to be said before a long conversion."""
    backend = checked_backend(build)
    backend.check_build(build)
    return backend


def _with_quantization(build: BuildConfig, checkpoint: Checkpoint) -> BuildConfig:
    """Returns the build with what a quantized checkpoint says. Raises ConfigError where both say something else, and
    for options of a quantization where there is none."""
    if checkpoint.quantization is None:
        build.check_quantization_options()
        return build
    options = checkpoint.quantization_options
    own = {"quantization": checkpoint.quantization, "group_size": options.get("group_size")}
    own["ignore"] = tuple(options["ignore"]) if "ignore" in options else None
    if others := [name for name, value in own.items() if getattr(build, name) not in (None, value)]:
        words = ", ".join(f"{name} {getattr(build, name)}" for name in others)
        raise ConfigError(
            f"{checkpoint.path} is quantized already ({checkpoint.quantization}) and stays as it is, the build asks for"
            f" {words}; leave that out, or build from the unquantized model."
        )
    return replace(build, **own)


def _check_mapping(build: BuildConfig, checkpoint: Checkpoint) -> None:
    """Raises ConfigError for a split checkpoint that the build would have to put together, to cut it otherwise or to
    quantize it."""
    if not checkpoint.is_split:
        return
    options = " ".join(checkpoint.split_options)
    if build.mapping != checkpoint.mapping:
        words = ", ".join(f"{axis}_size {size}" for axis, size in build.mapping.items())
        raise ConfigError(
            f"{checkpoint.path} is split for {options}, the build asks for {words}; run vlm build with {options}, or"
            " build from the whole model.",
            settings=tuple(f"{axis}_size" for axis in build.mapping),
        )
    if build.quantization != checkpoint.quantization:
        raise ConfigError(
            f"{checkpoint.path} is split for {options}, and weights are quantized ({build.quantization}) before they"
            " are cut; build from the whole model."
        )


def _cast(checkpoint: Checkpoint, role: str, rank: int, config: Config, build: BuildConfig) -> RoleWeights:
    """Returns the weights of one file in the engine's dtype, each cast when it is written."""
    kind: torch.dtype = getattr(torch, build.dtype)
    weights = role_weights(checkpoint, role, rank, config)
    source = weights.source
    layout = {
        name: (kind if old.is_floating_point and name not in weights.quantized else old, shape)
        for name, (old, shape) in source.layout.items()
    }

    def read(name: str) -> Tensor:
        tensor = source.read(name).to(layout[name][0])
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise CheckpointError(_not_finite(checkpoint, f"{role} weight {name}", build.dtype, source.read(name)))
        return tensor

    return replace(weights, source=TensorSource(layout, read))


def _is_finite(tensor: Tensor) -> bool:
    """Says whether no value is NaN or infinite, by the extremes, of which NaN is both: no second tensor is made."""
    wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch has no extremes of FP8
    return not wide.numel() or all(bool(extreme.isfinite()) for extreme in wide.aminmax())


def _not_finite(checkpoint: Checkpoint, weight: str, dtype: str, tensor: Tensor) -> str:
    if _is_finite(tensor):
        return f"{weight} holds values that {dtype} cannot; build with dtype bfloat16 or float32."
    model = checkpoint.source or checkpoint.path  # the checkpoint itself may be gone by then
    return f"{weight} holds NaN or infinity: {model} is damaged; fetch or convert it again."


def _manifest(
    checkpoint: Checkpoint,
    spec: FamilySpec,
    roles: Mapping[str, RoleWeights],
    *,
    build: BuildConfig,
    limits: EngineLimits,
    output: BuiltFiles,
) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        vlm_version=__version__,
        family=spec.name,
        roles={role: {"model": weights.model, "config": weights.config} for role, weights in roles.items()},
        backend=build.backend,
        limits=limits.to_manifest(),
        dtype=build.dtype,
        mapping=build.mapping,
        quantization=build.quantization,
        quantization_options=checkpoint.quantization_options or build.quantization_options,
        generation=checkpoint.generation,
        source=checkpoint.source,
        built_on=built_on(),
        built_for=output.built_for,
        files=output.files,
    )
