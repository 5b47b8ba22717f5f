"""convert → build: Hugging Face folder -> Checkpoint -> EngineDir; also checkpoints of random weights, to measure."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlm import __version__
from vlm.artifacts.checkpoint import Checkpoint, Progress, RoleWeights, copy_processor, write_checkpoint, write_roles
from vlm.artifacts.engine_dir import FORMAT_VERSION, WHAT, EngineDir, Manifest, built_on, file_entries, is_engine
from vlm.artifacts.files import atomic_dir
from vlm.artifacts.generation_config import generation_defaults
from vlm.artifacts.hf_folder import HFFolder
from vlm.artifacts.weights import Joined, Layout, Scoped, TensorSource
from vlm.config import DTYPES, BuildConfig, Config
from vlm.convert.rules import attempt
from vlm.convert.tokenizer_files import make_tokenizer
from vlm.errors import CheckpointError, ConfigError, EngineError, InputError, listed
from vlm.registry.registry import architecture, check_model, configs_of, converter_of, family, match_family, model_spec
from vlm.registry.spec import FamilySpec, ModelSpec, Role

# what lies outside of the base model in Hugging Face's classes
HEADS = ("lm_head.", "final_logits_bias")


def convert_folder(
    source: Path, out: Path, *, progress: Progress | None = None, tokenizer: str | None = None
) -> Checkpoint:
    """A Hugging Face model folder (or what a converter takes) -> our checkpoint at `out`, written whole or not at all.

    `tokenizer`: what splits a FairSeq model's texts before BPE, where its folder does not say. Raises ConfigError for a
    model or field that is not supported; one CheckpointError with every reason why the weights do not fit, or for a
    folder that is damaged.
    """
    if Path(source).exists():
        check_model(Path(source))
    with _absurd_values(source):
        return _convert_folder(Path(source), Path(out), progress, tokenizer)


_ABSURD = (
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
)


@contextlib.contextmanager
def _absurd_values(source: Path) -> Iterator[None]:
    """Turns what absurd values of a configuration end in, which is of many kinds, into a ConfigError."""
    try:
        yield
    except _ABSURD as error:
        first = str(error).partition("\n")[0][:200].rstrip(".") or type(error).__name__
        raise ConfigError(
            f"the configuration of {source} holds a value that no model has ({first}); fetch it again."
        ) from error


def _convert_folder(source: Path, out: Path, progress: Progress | None, tokenizer: str | None) -> Checkpoint:
    options = {} if tokenizer is None else {"tokenizer": tokenizer}
    converter = converter_of(source)
    if options and (converter is None or "tokenizer" not in converter.options):
        raise InputError(f"--tokenizer is for FairSeq's models, {source} is none; leave it out.")
    if converter is not None:
        return converter.load()(source, out, progress=progress, **options)
    folder = HFFolder(source)
    spec = match_family(folder.config)
    configs = role_configs(spec, folder.config)
    tensors = named_tensors(folder.tensors, spec)
    roles = convert_roles(tensors, spec, configs, folder.path)
    with _processor_files(folder, spec) as files:
        return write_checkpoint(
            out,
            family=spec.name,
            roles=roles,
            generation=folder.generation,
            source=folder.path.resolve().name,
            processor_files=files,
            progress=progress,
        )


@contextlib.contextmanager
def _processor_files(folder: HFFolder, spec: FamilySpec) -> Iterator[list[Path]]:
    """The folder's, and for a model of texts a tokenizer.json that is made where there is none."""
    files = list(folder.processor_files)
    with tempfile.TemporaryDirectory() as made:
        lacks = "text" in spec.inputs and not any(file.name == "tokenizer.json" for file in files)
        if lacks and (text := make_tokenizer(folder.path)) is not None:
            files.append(Path(made) / "tokenizer.json")
            files[-1].write_text(text, encoding="utf-8")
        yield files


def role_configs(spec: FamilySpec, hf: dict[str, Any]) -> dict[str, Config]:
    """Every role's configuration out of a Hugging Face one; ConfigError when its part is missing or unsupported."""
    keys = [role.config_key for role in spec.roles.values() if role.config_key]
    if absent := [key for key in keys if not isinstance(hf.get(key), dict)]:
        raise ConfigError(f"the configuration of this {spec.name} model lacks its part {listed(absent)}.")
    parts = {name: hf[role.config_key] if role.config_key else hf for name, role in spec.roles.items()}
    return {name: model_spec(role.model).parse(parts[name]) for name, role in spec.roles.items()}


def module_layout(spec: ModelSpec, config: Config) -> Layout:
    """Name -> (dtype, shape) of all that a module keeps; nothing is allocated."""
    state = spec.skeleton(config).state_dict()
    return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()}


def convert_roles(
    tensors: Mapping[str, Tensor], spec: FamilySpec, configs: Mapping[str, Config], folder: Path
) -> dict[str, RoleWeights]:
    """A folder's tensors -> every role's. Raises one CheckpointError with every reason why they do not fit."""
    owned, reasons = share_out(tensors, spec.roles), []
    used = {name for names in owned.values() for name in names}
    if strays := sorted(set(tensors) - used):
        reasons.append(f"tensors of no part of a {spec.name} model: {listed(strays)}")
    roles = {}
    for name, role in spec.roles.items():
        model = model_spec(role.model)
        source = Scoped(tensors, owned[name], role.weight_prefix, role.outer)
        config = model.adapt(configs[name], source)
        targets = {target: shape for target, (_, shape) in module_layout(model, config).items()}
        whole = [shared.removeprefix(role.outer) for shared in role.shared]
        outcome = attempt(source, model.rules(config), targets, role.weight_prefix, whole)
        reasons += outcome.reasons
        roles[name] = RoleWeights(role.model, config.to_dict(), TensorSource.of(outcome.tensors))
    if reasons:
        raise CheckpointError(f"the weights in {folder} do not fit its config.json: {'; '.join(reasons)}.")
    return roles


def named_tensors(tensors: Mapping[str, Tensor], spec: FamilySpec) -> Mapping[str, Tensor]:
    """Returns a folder's tensors under the names that the family's roles know."""
    return with_base_prefix(_renamed(tensors, spec.renamed), spec.base_prefixes)


def _renamed(tensors: Mapping[str, Tensor], beginnings: Mapping[str, str]) -> Mapping[str, Tensor]:
    parts = {new: [name for name in tensors if name.startswith(old)] for old, new in beginnings.items()}
    if not any(parts.values()):
        return tensors
    others = [name for name in tensors if not name.startswith(tuple(beginnings))]
    olds = {new: old for old, new in beginnings.items()}
    return Joined({**{new: Scoped(tensors, parts[new], olds[new]) for new in parts}, "": Scoped(tensors, others, "")})


def with_base_prefix(tensors: Mapping[str, Tensor], prefixes: tuple[str, ...]) -> Mapping[str, Tensor]:
    """Returns the tensors under the names of the whole model, where none has a prefix of its base model."""
    if not prefixes or any(name.startswith(prefixes) for name in tensors):
        return tensors
    heads = [name for name in tensors if name.startswith(HEADS)]
    inner = [name for name in tensors if not name.startswith(HEADS)]
    return Joined({prefixes[0]: Scoped(tensors, inner, ""), "": Scoped(tensors, heads, "")})


def share_out(names: Mapping[str, Tensor], roles: Mapping[str, Role]) -> dict[str, list[str]]:
    """Each tensor goes to the role with the longest prefix of its name (to several, when they share that prefix), and
    to those that name it."""
    owned: dict[str, list[str]] = {role: [] for role in roles}
    for name in names:
        fitting = [role for role, spec in roles.items() if name.startswith(spec.weight_prefix)]
        longest = max((len(roles[role].weight_prefix) for role in fitting), default=0)
        for role in fitting:
            if len(roles[role].weight_prefix) == longest:
                owned[role].append(name)
        for role, spec in roles.items():
            if name in spec.shared and name not in owned[role]:
                owned[role].append(name)
    return owned


def random_checkpoint(arch: str | dict[str, Any], out: Path, *, seed: int = 0, dtype: str = "float32") -> Checkpoint:
    """A checkpoint of a published shape (`nougat-base`), or of a Hugging Face configuration, with random weights.

    Norm weights are 1, all else is normal with deviation 0.02. The same seed gives the same bytes. It has no processor.
    """
    if dtype not in DTYPES:
        raise ConfigError(f"dtype is {dtype!r}, allowed are {listed(DTYPES)}.")
    spec, hf = (match_family(arch), arch) if isinstance(arch, dict) else architecture(arch)
    configs = role_configs(spec, hf)
    roles = {
        name: RoleWeights(role.model, configs[name].to_dict(), _random_source(role, configs[name], name, seed, dtype))
        for name, role in spec.roles.items()
    }
    label = arch if isinstance(arch, str) else spec.name
    return write_checkpoint(
        Path(out),
        family=spec.name,
        roles=roles,
        generation=generation_defaults(hf),
        source=f"{label}, random weights, seed {seed}",
    )


def _random_source(role: Role, config: Config, role_name: str, seed: int, dtype: str) -> TensorSource:
    kind: torch.dtype = getattr(torch, dtype)
    layout = module_layout(model_spec(role.model), config)
    # a table of integers is computed, not learned: the module must not keep it in its state
    assert all(kept.is_floating_point for kept, _ in layout.values()), role.model

    def draw(name: str) -> Tensor:
        shape = layout[name][1]
        if len(shape) == 1 and name.endswith("weight"):  # of a norm
            return torch.ones(shape, dtype=kind)
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{role_name}/{name}".encode()))
        return torch.empty(shape).normal_(std=0.02, generator=generator).to(kind)

    return TensorSource({name: (kind, shape) for name, (_, shape) in layout.items()}, draw)


def build_engine(
    checkpoint: Checkpoint, out: Path, build: BuildConfig, *, progress: Progress | None = None
) -> EngineDir:
    """A checkpoint -> an engine at `out`, written whole or not at all; an older engine there is replaced.

    Raises ConfigError for limits beyond what the model allows, CheckpointError for weights that are damaged or that
    `build.dtype` cannot hold.
    """
    spec = family(checkpoint.family)
    with _absurd_values(checkpoint.path):
        configs = configs_of(checkpoint)
        build = resolve_limits(build, configs)
    check_backend(build)
    roles = {role: _cast(checkpoint, role, configs[role], build.dtype) for role in configs}
    with atomic_dir(Path(out), is_engine, WHAT, EngineError) as draft:
        files, built_for = _write_networks(draft, roles, configs, build, progress)
        files |= file_entries(draft, copy_processor(checkpoint.processor_files, draft))
        _manifest(checkpoint, spec, roles, build, files, built_for).write(draft)
    return EngineDir.open(out, verify=False)


def check_backend(build: BuildConfig) -> None:
    """EngineError where this machine cannot build for it: to be said before a long conversion."""
    if build.backend == "tensorrt":
        from vlm.backends.tensorrt.builder import PlanBuilder

        PlanBuilder.of(build)
    if build.backend != "torch":
        from vlm.backends.onnxruntime.session import require

        require("onnx", "onnxscript", "onnxruntime")


def _write_networks(
    draft: Path,
    roles: Mapping[str, RoleWeights],
    configs: Mapping[str, Config],
    build: BuildConfig,
    progress: Progress | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The files that the backend runs, as the manifest lists them (weights, or graphs or plans that hold them), and
    what may run them."""
    if build.backend == "torch":
        return write_roles(draft, roles, "Building the engine", progress), {"devices": ["cpu", "cuda"]}
    if build.backend == "tensorrt":
        from vlm.backends.tensorrt.engine import write_plans

        plans, info = write_plans(draft, roles, configs, build, progress)
        return file_entries(draft, plans), info.built_for()
    from vlm.backends.onnxruntime.engine import write_graphs

    return file_entries(draft, write_graphs(draft, roles, configs, build, progress)), {"devices": ["cpu"]}


def resolve_limits(build: BuildConfig, configs: Mapping[str, Config]) -> BuildConfig:
    """`None` becomes what the model allows; ConfigError for more than that."""
    decoder = configs.get("decoder")
    defaults: dict[str, int | None] = {"max_seq_len": None, "max_encoder_input_len": None}
    allowed, wrong = dict(defaults), []
    if decoder is not None:
        defaults["max_seq_len"], allowed["max_seq_len"] = decoder.max_positions, decoder.position_limit
    elif build.max_seq_len is not None:
        wrong.append("this model is an encoder alone: max_encoder_input_len is the limit, leave max_seq_len out")
    if "encoder" in configs:
        source = configs["encoder"]
        defaults["max_encoder_input_len"] = source.max_positions
        allowed["max_encoder_input_len"] = source.position_limit
    elif decoder.cross_attention:
        rows, asked = configs["visual"].num_features, build.max_encoder_input_len
        defaults["max_encoder_input_len"] = allowed["max_encoder_input_len"] = rows
        if asked is not None and asked < rows:
            wrong.append(f"max_encoder_input_len is {asked}, but one image takes {rows} rows")
    elif build.max_encoder_input_len is not None:
        wrong.append("this model has no encoder of texts: max_seq_len is the limit, leave max_encoder_input_len out")
    for name, most in allowed.items():
        asked = getattr(build, name)
        if asked is not None and most is not None and asked > most:
            wrong.append(f"{name} is {asked}, this model allows at most {most}")
    if wrong:
        raise ConfigError("; ".join(wrong) + ".")
    return dataclasses.replace(
        build, **{n: value if getattr(build, n) is None else getattr(build, n) for n, value in defaults.items()}
    )


def _cast(checkpoint: Checkpoint, role: str, config: Config, dtype: str) -> RoleWeights:
    """The role's weights in the engine's dtype, each cast when it is written."""
    kind: torch.dtype = getattr(torch, dtype)
    model, weights = checkpoint.roles[role], checkpoint.weights(role)
    with _absurd_values(checkpoint.path):
        expected = {name: shape for name, (_, shape) in module_layout(model_spec(model), config).items()}
    stored = TensorSource.of(weights).layout
    if wrong := sorted(
        n for n in expected.keys() | stored.keys() if n not in stored or stored[n][1] != expected.get(n)
    ):
        raise CheckpointError(
            f"{checkpoint.weight_file(role)} does not fit its config.json in {listed(wrong)}; convert it again."
        )
    layout = {n: (kind if old.is_floating_point else old, shape) for n, (old, shape) in stored.items()}

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
    build: BuildConfig,
    files: dict[str, Any],
    built_for: dict[str, Any],
) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        vlm_version=__version__,
        family=spec.name,
        roles={role: {"model": weights.model, "config": weights.config} for role, weights in roles.items()},
        backend=build.backend,
        limits={n: getattr(build, n) for n in ("max_batch_size", "max_seq_len", "max_encoder_input_len")},
        dtype=build.dtype,
        mapping={"tp": 1, "pp": 1},
        quantization=build.quantization,
        generation=checkpoint.generation,
        source=checkpoint.source,
        built_on=built_on(),
        built_for=built_for,
        files=files,
    )
