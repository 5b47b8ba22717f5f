"""A checkpoint -> an engine directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from vlm import __version__
from vlm.artifacts.checkpoint import Checkpoint, Progress, RoleWeights, copy_processor
from vlm.artifacts.engine_dir import EngineDir, is_engine
from vlm.artifacts.files import atomic_dir
from vlm.artifacts.manifest import FORMAT_VERSION, WHAT, Manifest, built_on, file_entries
from vlm.artifacts.weights import TensorSource
from vlm.backends.base import Backend, BuildJob, BuiltFiles
from vlm.backends.installed import checked_backend
from vlm.build.limits import resolve_limits
from vlm.config import BuildConfig, Config, EngineLimits
from vlm.convert.roles import module_layout
from vlm.convert.values import invalid_values
from vlm.errors import CheckpointError, ConfigError, EngineError, listed
from vlm.layers.context import ModelContext
from vlm.layers.quant.methods import METHODS, quantization_of
from vlm.registry.catalogs import configs_of, family, model_spec
from vlm.registry.quantized_weights import own_types, quantized_layers
from vlm.registry.spec import FamilySpec


def build_engine(
    checkpoint: Checkpoint, out: Path, build: BuildConfig, *, progress: Progress | None = None
) -> EngineDir:
    """Builds a checkpoint -> an engine at `out`, written whole or not at all; an older engine there is replaced.

    A checkpoint that is quantized stays as it is. Raises ConfigError for limits beyond what the model allows and for
    another quantization, CheckpointError for weights that are damaged or that `build.dtype` cannot hold.
    """
    spec, build = family(checkpoint.family), _with_quantization(build, checkpoint)
    with invalid_values(checkpoint.path):
        configs = configs_of(checkpoint)
        limits = resolve_limits(build, configs)
    backend = check_backend(build)
    if checkpoint.quantization is not None and not backend.takes_quantized:
        raise EngineError(
            f"the backend {backend.name} quantizes what it builds from unquantized weights, {checkpoint.path} holds"
            f" {checkpoint.quantization}; build with backend torch, or from the unquantized model."
        )
    roles = {role: _cast(checkpoint, role, configs[role], build.dtype) for role in configs}
    options = checkpoint.quantization_options or build.quantization_options
    with atomic_dir(Path(out), is_engine, WHAT, EngineError) as draft:
        output = backend.write(BuildJob(draft, roles, configs, build, limits, progress, options))
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


def _with_quantization(build: BuildConfig, checkpoint: Checkpoint) -> BuildConfig:
    """Returns the build with what a quantized checkpoint says. Raises ConfigError where both say something else, and
    for options of a quantization where there is none."""
    if checkpoint.quantization is None:
        if build.quantization is None and build.quantization_options:
            raise ConfigError(
                f"the build says {listed(build.quantization_options)} but no quantization; name one, or leave that out."
            )
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


def _cast(checkpoint: Checkpoint, role: str, config: Config, dtype: str) -> RoleWeights:
    """Returns the role's weights in the engine's dtype, each cast when it is written."""
    kind: torch.dtype = getattr(torch, dtype)
    model, weights = checkpoint.roles[role], checkpoint.weights(role)
    own_dtypes, model_shapes = _expected(checkpoint, role, config)
    file_layout = TensorSource.from_tensors(weights).layout
    if mismatches := sorted(
        n
        for n in model_shapes.keys() | file_layout.keys()
        if n not in file_layout or file_layout[n][1] != model_shapes.get(n)
    ):
        raise CheckpointError(
            f"{checkpoint.weight_file(role)} does not fit its config.json in {listed(mismatches)}; convert it again."
        )
    if mismatches := [name for name, own in own_dtypes.items() if file_layout[name][0] != own]:
        raise CheckpointError(
            f"{checkpoint.weight_file(role)} does not hold {listed(mismatches)} as {checkpoint.quantization} keeps"
            " them; convert it again."
        )
    layout = {
        n: (kind if old.is_floating_point and n not in own_dtypes else old, shape)
        for n, (old, shape) in file_layout.items()
    }

    def read(name: str) -> Tensor:
        tensor = weights[name].to(layout[name][0])
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise CheckpointError(_not_finite(checkpoint, role, name, dtype, weights[name]))
        return tensor

    return RoleWeights(model, checkpoint.config(role), TensorSource(layout, read), frozenset(own_dtypes))


def _expected(
    checkpoint: Checkpoint, role: str, config: Config
) -> tuple[dict[str, torch.dtype], dict[str, tuple[int, ...]]]:
    """Returns the types of what is quantized, and the shapes of all tensors, by their names."""
    spec, kind = model_spec(checkpoint.roles[role]), checkpoint.quantization
    if kind is not None and kind not in METHODS:
        raise CheckpointError(
            f"{checkpoint.path} keeps its weights as {kind}, which this vlm does not know; convert it again."
        )
    with invalid_values(checkpoint.path):
        quantization = quantization_of(kind, checkpoint.quantization_options).of_role(role)
        layout = module_layout(spec, config, ModelContext(quantization=quantization))
        return own_types(quantized_layers(spec, config, quantization)), {n: shape for n, (_, shape) in layout.items()}


def _is_finite(tensor: Tensor) -> bool:
    """Says whether no value is NaN or infinite, by the extremes, of which NaN is both: no second tensor is made."""
    wide = tensor.float() if tensor.dtype.itemsize == 1 else tensor  # torch has no extremes of FP8
    return not wide.numel() or all(bool(extreme.isfinite()) for extreme in wide.aminmax())


def _not_finite(checkpoint: Checkpoint, role: str, name: str, dtype: str, tensor: Tensor) -> str:
    if _is_finite(tensor):
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
        mapping={"tp": build.tp_size, "pp": build.pp_size},
        quantization=build.quantization,
        quantization_options=checkpoint.quantization_options or build.quantization_options,
        generation=checkpoint.generation,
        source=checkpoint.source,
        built_on=built_on(),
        built_for=output.built_for,
        files=output.files,
    )
