"""`vlm inspect`: what a checkpoint, an engine or a Hugging Face folder is."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlm.artifacts.prompt_tables import PromptTables, is_tables
from vlm.errors import counted
from vlm_app.cli.display.description import description_text
from vlm_app.cli.errors import command
from vlm_app.cli.options.common import Json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from vlm.artifacts.native.checkpoint import Checkpoint
    from vlm.artifacts.native.engine_dir import EngineDir
    from vlm.config import BuildConfig


@command
def inspect(
    model: Annotated[
        str,
        typer.Argument(help="A checkpoint, an engine, a Hugging Face folder or one of tuned prompts; a packaged name."),
    ],
    as_json: Json = False,
) -> None:
    """Explain a model directory: family, parts, sizes, limits, memory, origin. Engines are verified.

    \b
    Examples:
      vlm inspect nougat-base.engine
      vlm inspect mini-nougat --json
    """
    description = describe_tables(Path(model)) if is_tables(Path(model)) else _describe_model(model)
    print(json.dumps(description, indent=2, ensure_ascii=False) if as_json else description_text(description))


def _describe_model(model: str) -> dict[str, Any]:
    from vlm.build.locate import locate

    source = locate(model)
    return DESCRIBE.get(source.kind, describe_foreign)(source.path)


def describe_tables(path: Path) -> dict[str, Any]:
    """Returns which tasks a folder of tuned prompts has."""
    tables = PromptTables.open(path)
    return {
        "kind": "tuned prompts",
        "path": str(path),
        "tasks": {prompt.name: counted(len(prompt.rows), "row") for prompt in tables.prompts},
        "width": tables.prompts[0].rows.shape[1],
        "next": f"vlm run --text TEXT --model MODEL --prompt-table {path} --tasks {tables.names[0]}",
    }


def describe_engine(path: Path) -> dict[str, Any]:
    """Returns what an engine is and needs. Raises EngineError where it is damaged."""
    from vlm.artifacts.native.engine_dir import EngineDir

    engine = EngineDir.open(path)
    manifest = engine.manifest
    roles = {role: _engine_role(engine, role) for role in engine.roles}
    return {
        "kind": "engine",
        "path": str(path),
        "family": engine.family,
        "roles": roles,
        "build": engine.build.to_dict(),
        **_multimodal(engine),
        "memory": _memory(engine, sum(part["bytes"] for part in roles.values())),
        "processor": _names(engine.processor_dir),
        "generation": engine.generation,
        "source": manifest.source,
        "built_on": {"vlm": manifest.vlm_version, **manifest.built_on},
        "built_for": manifest.built_for,
        "mapping": manifest.mapping,
        **_stages(engine),
        "quantization": manifest.quantization,
        "verified": True,
    }


def describe_checkpoint(path: Path) -> dict[str, Any]:
    """Returns what a converted checkpoint is."""
    from vlm.artifacts.native.checkpoint import Checkpoint

    checkpoint = Checkpoint.open(path)
    return {
        "kind": "checkpoint",
        "path": str(path),
        "family": checkpoint.family,
        "roles": {role: _checkpoint_role(checkpoint, role) for role in checkpoint.roles},
        "dtype": checkpoint.manifest.get("dtype"),
        "processor": [file.name for file in checkpoint.processor_files],
        "generation": checkpoint.generation,
        "source": checkpoint.source,
        "mapping": checkpoint.mapping,
        "quantization": checkpoint.quantization,
        "next": " ".join(["vlm build", str(path), "-o", f"{path.name}.engine", *checkpoint.split_options]),
    }


def describe_folder(path: Path) -> dict[str, Any]:
    """Returns what a Hugging Face folder would become. Raises ConfigError where its model is not supported."""
    from vlm.artifacts.hugging_face.hf_folder import HFFolder
    from vlm.artifacts.weights import PrefixView
    from vlm.convert.quantized.source import read_quantized
    from vlm.convert.roles import named_tensors, partition_tensors, role_configs
    from vlm.registry.catalogs import match_family

    folder = HFFolder(path)
    family = match_family(folder.config, path)
    role_configs(family, folder.config)
    tensors = named_tensors(folder.tensors, family)
    names_by_role = partition_tensors(tensors, family.roles)
    parts = {
        role: _role(part.model, PrefixView(tensors, names_by_role[role], "")) for role, part in family.roles.items()
    }
    if (quantized := read_quantized(folder)) is not None:
        whole = named_tensors(quantized.tensors, family)
        for role, names in partition_tensors(whole, family.roles).items():
            shapes = [tensor.shape for tensor in PrefixView(whole, names, "").values()]
            kept = PrefixView(tensors, names_by_role[role], "")
            parts[role] |= _stored(kept) | {"parameters": sum(map(math.prod, shapes))}
    return {
        "kind": "hugging face folder",
        "path": str(path),
        "family": family.name,
        "roles": parts,
        "processor": [file.name for file in folder.processor_files],
        "generation": family.generation_settings(folder.config, folder.generation),
        "quantization": quantized and f"{quantized.scheme.format}, kept as {quantized.scheme.method}",
        "next": f"vlm build {path} -o {path.name}.engine",
    }


def describe_foreign(path: Path) -> dict[str, Any]:
    """Returns what reads a folder or file of another program."""
    from vlm.registry.catalogs import converter_of

    converter = converter_of(path)
    assert converter is not None  # else it is no folder or file of another program
    kind = f"{converter.name} {'folder' if path.is_dir() else 'archive'}"
    if (held := converter.beside_model(path)) is None:
        return {"kind": kind, "path": str(path), "next": f"vlm convert {path} -o {path.name}.checkpoint"}
    out = f"{path.stem}.{held.split()[-1]}"  # model.prompts, model.adapter
    option = f"--lora-dir {out}" if held == "an adapter" else f"--prompt-table {out}"
    return {
        "kind": f"{kind} of {held}, no model but what is given beside one",
        "path": str(path),
        "next": f"vlm convert {path} -o {out}",
        "then": f"vlm run --text TEXT --model MODEL {option}",
    }


DESCRIBE = {"engine": describe_engine, "checkpoint": describe_checkpoint, "hf": describe_folder}


def _role(model: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    values = [tensor for tensor in tensors.values() if tensor.is_floating_point()]
    return {
        "model": model,
        "parameters": sum(math.prod(tensor.shape) for tensor in values),
        "bytes": sum(tensor.nbytes for tensor in values),
        "dtypes": sorted({str(tensor.dtype).removeprefix("torch.") for tensor in values}),
    }


def _checkpoint_role(checkpoint: Checkpoint, role: str) -> dict[str, Any]:
    from vlm.artifacts.weights import MergedView

    files = {f"{rank}.": checkpoint.weights(role, rank) for owner, rank in checkpoint.parts if owner == role}
    tensors = MergedView(files)
    described = _role(checkpoint.roles[role], tensors)
    if checkpoint.quantization is None and not checkpoint.is_split:
        return described
    return described | _stored(tensors) | {"parameters": _parameters(checkpoint, role)}


def _stored(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns bytes and types of tensors, whole numbers included: of quantized weights."""
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})
    return {"bytes": sum(tensor.nbytes for tensor in tensors.values()), "dtypes": dtypes}


def _parameters(source: Checkpoint | EngineDir, role: str) -> int:
    """Returns how many values the weights of a role stand for."""
    from vlm.convert.roles import module_layout
    from vlm.registry.catalogs import model_spec

    spec = model_spec(source.roles[role])
    layout = module_layout(spec, spec.config.from_dict(source.config(role)))
    return sum(math.prod(shape) for _, shape in layout.values())


def _engine_role(engine: EngineDir, role: str) -> dict[str, Any]:
    """Describes a role by its stored weights, or by the files that hold them in another form."""
    from vlm.artifacts.weights import TensorFiles
    from vlm.backends.graphs.io import role_of

    name, files = engine.roles[role], engine.manifest.files
    is_one_file = engine.build.num_ranks == 1 and f"{role}/rank0.safetensors" in files
    if is_one_file and engine.manifest.quantization is None:
        return _role(name, TensorFiles([engine.path / role / "rank0.safetensors"]))
    sizes = [entry["size"] for file, entry in files.items() if role_of(file.split("/")[0]) == role]
    return {
        "model": name, "parameters": _parameters(engine, role), "bytes": sum(sizes), "dtypes": _dtypes(engine.build)
    }  # fmt: skip


def _dtypes(build: BuildConfig) -> list[str]:
    return [build.dtype] if build.quantization is None else [build.quantization, build.dtype]


def _memory(engine: EngineDir, weights: int) -> dict[str, int]:
    """Returns bytes of the weights, of the KV cache of a full batch at full length, and of one sequence's share; where
    there are several ranks those of the one that has the most."""
    from vlm.api.model.cache_bytes import CacheBytes

    cache, several = CacheBytes.from_engine(engine), engine.build.num_ranks > 1
    if several:
        weights = max(_rank_bytes(engine, rank) for rank in range(engine.build.num_ranks))
    memory = {
        "weights": weights, "kv_cache_full_batch": cache.full_batch, "kv_cache_per_sequence": cache.per_sequence,
    }  # fmt: skip
    return {f"{name}_a_rank": size for name, size in memory.items()} if several else memory


def _stages(engine: EngineDir) -> dict[str, Any]:
    """Returns of each stage of a pipeline its layers of the decoder (first, last) and the weights of each of its
    ranks."""
    if engine.build.pp_size == 1:
        return {}
    from vlm.registry.catalogs import configs_of
    from vlm.registry.networks import mapping_of

    decoder, ranks = configs_of(engine).decoder, range(engine.build.num_ranks)
    stages = []
    for mapping in (mapping_of(engine, rank) for rank in ranks[:: engine.build.tp_size]):
        layers = None if decoder is None else mapping.layers(decoder.num_layers)
        sizes = [_rank_bytes(engine, rank) for rank in mapping.stage_ranks]
        stages.append({"layers": layers and [layers[0], layers[-1]], "weights": sizes})
    return {"stages": stages}


def _rank_bytes(engine: EngineDir, rank: int) -> int:
    """Returns the bytes of the files that a rank loads."""
    from vlm.registry.networks import mapping_of

    mapping = mapping_of(engine, rank)
    names = [f"{role}/rank{mapping.of_role(role).rank}.safetensors" for role in engine.roles]
    return sum(engine.manifest.files[name]["size"] for name in names)


def _multimodal(engine: EngineDir) -> dict[str, Any]:
    """Returns how many rows images may take in prompts, of one and of a full batch: follows from the limits."""
    from vlm.registry.catalogs import configs_of, family

    if "visual" not in engine.roles or family(engine.family).chat_format is None:
        return {}
    features = configs_of(engine)["visual"].max_rows
    limits = engine.limits
    images = (limits.max_encoder_input_len or limits.max_seq_len - 1) // features
    return {"images": {"features_per_image": features, "max_images_per_prompt": images,
                       "max_multimodal_len": limits.max_batch_size * images * features}}  # fmt: skip


def _names(folder: Path | None) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder else []
