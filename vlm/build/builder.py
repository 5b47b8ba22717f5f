"""A checkpoint -> an engine directory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vlm import __version__
from vlm.artifacts.checkpoint import Checkpoint, Progress, RoleWeights, copy_processor
from vlm.artifacts.engine_dir import FORMAT_VERSION, WHAT, EngineDir, Manifest, built_on, file_entries, is_engine
from vlm.artifacts.files import atomic_dir
from vlm.artifacts.weights import TensorSource
from vlm.backends.base import Backend, BuildJob, BuiltFiles
from vlm.backends.installed import checked_backend
from vlm.build.limits import resolve_limits
from vlm.config import BuildConfig, Config, EngineLimits
from vlm.convert.roles import module_layout
from vlm.convert.values import invalid_values
from vlm.errors import CheckpointError, EngineError, listed
from vlm.registry.catalogs import configs_of, family, model_spec
from vlm.registry.spec import FamilySpec


def build_engine(
    checkpoint: Checkpoint, out: Path, build: BuildConfig, *, progress: Progress | None = None
) -> EngineDir:
    """A checkpoint -> an engine at `out`, written whole or not at all; an older engine there is replaced.

    Raises ConfigError for limits beyond what the model allows, CheckpointError for weights that are damaged or that
    `build.dtype` cannot hold.
    """
    spec = family(checkpoint.family)
    with invalid_values(checkpoint.path):
        configs = configs_of(checkpoint)
        limits = resolve_limits(build, configs)
    backend = check_backend(build)
    roles = {role: _cast(checkpoint, role, configs[role], build.dtype) for role in configs}
    with atomic_dir(Path(out), is_engine, WHAT, EngineError) as draft:
        output = backend.write(BuildJob(draft, roles, configs, build, limits, progress))
        others = file_entries(draft, copy_processor(checkpoint.processor_files, draft))
        files = BuiltFiles(output.files | others, output.built_for)
        _manifest(checkpoint, spec, roles, build=build, limits=limits, output=files).write(draft)
    return EngineDir.open(out, verify=False)


def check_backend(build: BuildConfig) -> Backend:
    """Returns what builds it. Raises ConfigError for a build that it never makes, EngineError where this machine
    cannot: to be said before a long conversion."""
    backend = checked_backend(build)
    backend.check_build(build)
    return backend


def _cast(checkpoint: Checkpoint, role: str, config: Config, dtype: str) -> RoleWeights:
    """The role's weights in the engine's dtype, each cast when it is written."""
    kind: torch.dtype = getattr(torch, dtype)
    model, weights = checkpoint.roles[role], checkpoint.weights(role)
    with invalid_values(checkpoint.path):
        model_shapes = {name: shape for name, (_, shape) in module_layout(model_spec(model), config).items()}
    file_layout = TensorSource.from_tensors(weights).layout
    if mismatches := sorted(
        n
        for n in model_shapes.keys() | file_layout.keys()
        if n not in file_layout or file_layout[n][1] != model_shapes.get(n)
    ):
        raise CheckpointError(
            f"{checkpoint.weight_file(role)} does not fit its config.json in {listed(mismatches)}; convert it again."
        )
    layout = {n: (kind if old.is_floating_point else old, shape) for n, (old, shape) in file_layout.items()}

    def read(name: str) -> Tensor:
        tensor = weights[name].to(layout[name][0])
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise CheckpointError(_not_finite(checkpoint, role, name, dtype, weights[name]))
        return tensor

    return RoleWeights(model, checkpoint.config(role), TensorSource(layout, read))


def _not_finite(checkpoint: Checkpoint, role: str, name: str, dtype: str, tensor: Tensor) -> str:
    if torch.isfinite(tensor).all():
        return f"{role} weight {name} holds values that {dtype} cannot; build with dtype bfloat16 or float32."
    return (
        f"{checkpoint.weight_file(role)} holds NaN or infinity in {name}; the model it was converted from is damaged."
    )


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
        mapping={"tp": 1, "pp": 1},
        quantization=build.quantization,
        generation=checkpoint.generation,
        source=checkpoint.source,
        built_on=built_on(),
        built_for=output.built_for,
        files=output.files,
    )
