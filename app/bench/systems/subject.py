"""The model under measurement, as an engine for us and as a folder for Hugging Face: the same weights for both."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.progress import Progress
from vlm.backends.devices import first_device
from vlm.build.builder import build_engine, check_backend
from vlm.build.kinds import kind_of as folder_kind
from vlm.build.limits import resolve_limits
from vlm.build.locate import Source, locate
from vlm.build.random_checkpoint import random_checkpoint
from vlm.build.store import resolve
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.convert.roles import role_configs
from vlm.errors import ConfigError, InputError, LimitError, counted, listed
from vlm.layers.quant.methods import IGNORE
from vlm.options import default_flag
from vlm.parallel.environment import rank_among
from vlm.registry.catalogs import configs_of, family, match_family
from vlm.registry.role_configs import RoleConfigs
from vlm.registry.spec import FamilySpec
from vlm_app.bench.config import Limits, SubjectConfig
from vlm_app.core.architecture import hf_config, read_arch
from vlm_app.core.backend_names import MeasuredName
from vlm_app.reference.random_model import has_class, save_random

LimitsOf = Callable[[RoleConfigs], Limits]  # of an engine with these roles
SIZES = ("tp_size", "encoder_tp_size", "pp_size")  # of ranks
# kinds of models: what they take, and what measures them
VERBS = {
    "image": ("images", "vlm bench latency or throughput"),
    "text": ("text", "vlm bench text"),
    "prompt": ("prompts", "vlm bench prompt"),
}


@dataclass(frozen=True)
class Subject:
    """`folder` None: there is nothing that Hugging Face could load."""

    engines: dict[str, Path]  # by backend
    folder: Path | None

    @property
    def engine(self) -> Path:
        return next(iter(self.engines.values()))


def prepare(
    config: SubjectConfig,
    dtype: str,
    scratch: Path,
    takes: str,
    progress: Progress | None = None,
    limits: LimitsOf | None = None,
) -> Subject:
    """Builds the run's engines below `scratch`; `limits` None: for the batch size, else as much as the model
    allows. InputError for a model that does not take "text", "image" or "prompt", as is asked; LimitError for limits
    beyond it.
    """
    limits = limits or (lambda configs: {"max_batch_size": getattr(config, "batch_size", 1)})
    source = _source(config, dtype, scratch, takes=takes, limits=limits, progress=progress)
    if source.kind == "engine":
        return Subject(_built(config, source.path, limits), None)
    checkpoint = _checkpoint(source, scratch / "checkpoint", progress)
    spec, configs = family(checkpoint.family), configs_of(checkpoint)
    build = _checked_build(config, spec, configs, dtype=dtype, takes=takes, limits=limits)
    engines: dict[str, Path] = {}
    for name in config.backend_names:
        parts = MeasuredName.read(name)
        path = scratch / (f"{parts.engine}+visual" if parts.quantizes_visual else parts.engine)
        if path not in engines.values():
            build_engine(checkpoint, path, replace(build, **parts.build), progress=progress)
        engines[name] = path
    if checkpoint.path.is_relative_to(scratch):
        shutil.rmtree(checkpoint.path)  # as large as the engine
    return Subject(engines, source.path if _has_baseline(source) else None)


def _built(config: SubjectConfig, path: Path, limits: LimitsOf) -> dict[str, Path]:
    """Resolves an engine that is there already. InputError where several backends are asked for."""
    engine = EngineDir.open(path, verify=False)
    name = backend_name(engine.build)
    wanted = config.backends or (name,)
    if not all(_names(MeasuredName.read(each), engine.build) for each in wanted):
        raise InputError(f"{path} is an engine of {name}; for {listed(wanted)} give what it was built from.")
    _check_ranks(config, engine)
    rank_among(engine.build.num_ranks, path)
    return dict.fromkeys(wanted, resolve(path, dtype=config.dtype, **limits(configs_of(engine))))


def _names(parts: MeasuredName, build: BuildConfig) -> bool:
    """Says whether a name is that of an engine with this build."""
    quantizes_visual = "visual" not in (IGNORE if build.ignore is None else build.ignore)
    return parts.engine == backend_name(build) and (quantizes_visual or not parts.quantizes_visual)


def _check_ranks(config: SubjectConfig, engine: EngineDir) -> None:
    """Raises InputError for other ranks than an engine is built for."""
    build, ranks = engine.build, counted(engine.build.num_ranks, "rank")
    own = {name: getattr(build, name) for name in SIZES} | {"encoder_tp_size": build.encoder_tp_size or build.tp_size}
    for name in SIZES:
        if (size := getattr(config, name)) not in (getattr(SubjectConfig, name), own[name]):
            flag = default_flag(name)
            raise InputError(f"{engine.path} is built for {ranks}; for {flag} {size} give what it was built from.")


def backend_name(build: BuildConfig) -> str:
    """Names what is measured: `onnxruntime-int8`."""
    return build.backend if build.quantization is None else f"{build.backend}-{build.quantization}"


def kind_of(family: FamilySpec) -> str:
    """Returns what the family is measured with: "image", "text" or "prompt"."""
    return "prompt" if family.takes_prompt else family.inputs[0]


def _source(
    config: SubjectConfig, dtype: str, scratch: Path, takes: str, limits: LimitsOf, progress: Progress | None
) -> Source:
    """Finds the model; refuses what is not fit for the run before minutes are spent."""

    def check(hf: dict[str, Any]) -> None:
        spec = match_family(hf)
        _check_kind(config.subject, spec, takes)
        _checked_build(config, spec, role_configs(spec, hf), dtype=dtype, takes=takes, limits=limits)

    if config.arch is not None:
        check(hf_config(config.arch))
        return _random_source(config, config.arch, dtype, scratch)
    assert config.model is not None  # there is one of the two
    source = locate(config.model, progress=progress)
    if source.kind == "engine":
        _check_kind(config.subject, family(EngineDir.open(source.path, verify=False).family), takes)
    elif source.kind == "hf":
        check(HFFolder(source.path).config)
    return source


def _checked_build(
    config: SubjectConfig, family: FamilySpec, configs: RoleConfigs, dtype: str, takes: str, limits: LimitsOf
) -> BuildConfig:
    """Returns the build without the backend, which must be able to take it all the same."""
    _check_kind(config.subject, family, takes)
    sizes = {name: getattr(config, name) for name in SIZES}
    build = BuildConfig(dtype=dtype, **sizes, **limits(configs))
    rank_among(build.num_ranks, config.subject)
    for name in config.backend_names:
        check_backend(replace(build, **MeasuredName.read(name).build))
    try:
        resolve_limits(build, configs)
    except ConfigError as error:
        more = "the images' rows" if takes == "prompt" else "a start token"
        raise LimitError(f"the lengths asked for, and {more}, do not fit {config.subject}: {error}") from None
    return build


def _check_kind(subject: str, family: FamilySpec, takes: str) -> None:
    if (kind := kind_of(family)) != takes:
        what, verb = VERBS[kind]
        raise InputError(f"{subject} takes {what}; use {verb}.")


def _random_source(config: SubjectConfig, arch: str, dtype: str, scratch: Path) -> Source:
    """Makes a model of random weights. With a baseline these weights are Hugging Face's own initialization, saved for
    both; else ours are quicker."""
    hf = hf_config(arch)
    if not config.beside_others or not has_class(hf):
        checkpoint = random_checkpoint(read_arch(arch), scratch / "random", seed=config.seed, dtype=dtype)
        return Source(config.subject, checkpoint.path, "checkpoint")
    folder = scratch / "hf"
    save_random(hf, folder, config.seed, dtype=getattr(torch, dtype), device=first_device(config.runtime))
    kind = folder_kind(folder)
    assert kind is not None, folder
    return Source(config.subject, folder, kind)


def _checkpoint(source: Source, out: Path, progress: Progress | None) -> Checkpoint:
    if source.kind == "checkpoint":
        return Checkpoint.open(source.path)
    return convert_folder(source.path, out, progress=progress)


def _has_baseline(source: Source) -> bool:
    """Says whether Hugging Face can load it: VILA's has to lie in its parts."""
    return source.kind == "hf" or (source.kind == "vila" and (source.path / "llm").is_dir())
