"""A quantized checkpoint -> a Hugging Face folder of compressed-tensors, which transformers, vLLM and vlm load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlm.artifacts.files import atomic_dir
from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.weights import Layout, TensorSource, write_tensors
from vlm.convert.quantized.exportable import WHAT, OriginalRole, check_roles, is_export, original_roles, row_order
from vlm.convert.quantized.ignored import ignore_patterns
from vlm.convert.quantized.integers import ZERO_LEVEL
from vlm.convert.rules import Step
from vlm.errors import CheckpointError, ConfigError
from vlm.layers.quant.methods import quantization_of
from vlm.layers.quant.producer import FOLDED
from vlm.ops.layouts.int4_packing import unpacked4

Read = Callable[[], Tensor]
# method -> format, bits, type, are inputs rounded?
PACKED = "pack-quantized"
FORMATS = {
    "int8": (PACKED, 8, "int", False),
    "int4": (PACKED, 4, "int", False),
    "int4-asymmetric": (PACKED, 4, "int", False),
    "w8a8": ("int-quantized", 8, "int", True),
    "fp8": ("float-quantized", 8, "float", True),
}


def export_compressed_tensors(checkpoint: Checkpoint, folder: Path, *, like: Path) -> Path:
    """Writes a quantized checkpoint as a Hugging Face folder, whole or not at all, and returns its path. `like`: the
    folder that it was converted from, whose configuration, names and processor it gets.

    Raises ConfigError for what compressed-tensors cannot say: scales or an order of a layer's inputs, and what
    `check_exportable` names; CheckpointError where `like` is another model's folder or is quantized.
    """
    settings, original = _settings(checkpoint), HFFolder(like)
    roles = original_roles(original)
    check_roles(original, roles, quantization_of(checkpoint.quantization, checkpoint.quantization_options))
    tensors: dict[str, Read] = {name: _reader(original.tensors, name) for name in original.tensors}
    for role in roles:
        tensors = _with_role(tensors, checkpoint, role)
    settings["ignore"] = _ignored(tensors)
    with atomic_dir(Path(folder), is_export, WHAT, CheckpointError) as draft:
        write_tensors(draft / "model.safetensors", _source(tensors))
        config = original.config | {"quantization_config": settings}
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for file in original.processor_files:
            shutil.copyfile(file, draft / file.name)
    return Path(folder)


def _settings(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the quantization_config. Raises ConfigError for what it cannot say."""
    method, options = checkpoint.quantization, checkpoint.quantization_options
    if method not in FORMATS:
        raise ConfigError(f"{checkpoint.path} is not quantized; run vlm quantize first.")
    if names := [name for name in ("pre_quant_scale", "input_order") if options.get(name)]:
        raise ConfigError(
            f"compressed-tensors has no place for {names[0]}, which layers of {checkpoint.path} have; keep the"
            " checkpoint, or quantize without it."
        )
    kind, bits, number, rounds_inputs = FORMATS[method]
    static = options.get("input_scale", False)
    if static not in (True, False):
        raise ConfigError("some layers have a static input_scale and others none; quantize all of them in one way.")
    base = {"num_bits": bits, "type": number, "symmetric": method != "int4-asymmetric", "dynamic": False}
    groups = {"strategy": "group", "group_size": _group_size(checkpoint)} if bits == 4 else {"strategy": "channel"}
    inputs = {**base, "dynamic": not static, "strategy": "tensor" if static else "token"} if rounds_inputs else None
    group = {"targets": ["Linear"], "weights": base | groups, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "kv_cache_scheme": None,
        **({FOLDED: True} if options.get(FOLDED) else {}),  # other programs pass it over
    }


def _ignored(tensors: Mapping[str, Read]) -> list[str]:
    """Returns the patterns of the matrices that stay dense."""
    quantized = {name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")}
    weights = {name.removesuffix(".weight") for name in tensors if name.endswith(".weight")} - quantized
    return ignore_patterns([name for name in weights if tensors[f"{name}.weight"]().dim() == 2], quantized)


def _group_size(checkpoint: Checkpoint) -> int:
    return quantization_of(checkpoint.quantization, checkpoint.quantization_options).method.group_size  # type: ignore


def _with_role(tensors: dict[str, Read], checkpoint: Checkpoint, role: OriginalRole) -> dict[str, Read]:
    """Returns the folder's tensors with what the checkpoint has for one network."""
    weights, tensors = checkpoint.weights(role.name), dict(tensors)
    layers = role.layers(quantization_of(checkpoint.quantization, checkpoint.quantization_options))
    for target, step, sources in role.steps():
        path = target.removesuffix(".weight")
        if path in layers and target.endswith(".weight"):
            sizes = [len(tensors.pop(name)()) for name in sources]
            parameters = {name: weights[f"{path}.{name}"] for name in layers[path].specs}
            for name, part in zip(sources, _parts(step, parameters, sizes), strict=True):
                layer = layer_tensors(part, packs=FORMATS[checkpoint.quantization or ""][0] == PACKED)
                tensors |= {f"{name.removesuffix('.weight')}.{key}": read for key, read in layer.items()}
        elif target not in weights:
            raise CheckpointError(
                f"{checkpoint.path} has no {role.name}.{target}; give the folder that it was made from."
            )
        elif len(step.targets) == 1:
            tensors |= _dense(step, weights[target], {name: tensors[name]() for name in sources})
    return tensors


def _parts(step: Step, parameters: Mapping[str, Tensor], sizes: list[int]) -> list[dict[str, Tensor]]:
    """Returns the parameters of each layer that the rows of a fused one belong to."""
    return [
        {name: value if name == "input_scale" else value[rows] for name, value in parameters.items()}
        for rows in row_order(step, sizes).split(sizes)
    ]


def _dense(step: Step, value: Tensor, sources: Mapping[str, Tensor]) -> dict[str, Read]:
    """Returns the readers of sources that a step makes a value of by moving their elements; none where it does not,
    or where they make it already."""
    total, sizes = sum(t.numel() for t in sources.values()), [t.numel() for t in sources.values()]
    places = torch.arange(total).split(sizes)
    [moved] = step.run([index.view(t.shape) for index, t in zip(places, sources.values(), strict=True)])
    if moved.shape != value.shape or moved.numel() != total or torch.equal(step.run(list(sources.values()))[0], value):
        return {}
    parts = value.flatten()[moved.flatten().argsort()].split(sizes)
    return {name: _constant(p.view(t.shape)) for (name, t), p in zip(sources.items(), parts, strict=True)}


def layer_tensors(parameters: Mapping[str, Tensor], *, packs: bool) -> dict[str, Read]:
    """Returns the readers of one layer's tensors by their names in it."""
    readers = {name: _constant(value) for name, value in parameters.items() if name in ("weight_scale", "input_scale")}
    if not packs:
        return readers | {"weight": _constant(parameters["weight"])}
    bits, levels = (4, _levels(parameters)) if "weight_packed" in parameters else (8, _unsigned(parameters["weight"]))
    readers["weight_packed"] = lambda: packed32(levels, bits)
    readers["weight_shape"] = _constant(torch.tensor(levels.shape))
    if "weight_zero" in parameters:
        readers["weight_zero_point"] = lambda: packed32(parameters["weight_zero"].t(), bits).t().contiguous()
    return readers


def _levels(parameters: Mapping[str, Tensor]) -> Tensor:
    """Returns the levels uint8 [out, in] of a weight of 4 bits."""
    packed, ones = parameters["weight_packed"], torch.ones_like(parameters["weight_scale"])
    return unpacked4(packed, ones, torch.zeros_like(ones)).to(torch.uint8)


def _unsigned(weight: Tensor) -> Tensor:
    return (weight.int() + ZERO_LEVEL[8]).to(torch.uint8)


def packed32(levels: Tensor, bits: int) -> Tensor:
    """Packs uint8 [R, C] -> int32 [R, C · bits / 32], the lowest bits first, the last word filled up with zeros."""
    each = 32 // bits
    words = torch.nn.functional.pad(levels, (0, -levels.shape[1] % each)).unflatten(1, (-1, each)).long()
    values = (words << torch.arange(0, 32, bits)).sum(2)
    return torch.where(values >= 2**31, values - 2**32, values).to(torch.int32)


def _reader(tensors: Mapping[str, Tensor], name: str) -> Read:
    return lambda: tensors[name]


def _constant(value: Tensor) -> Read:
    return lambda: value


def _source(readers: Mapping[str, Read]) -> TensorSource:
    """Returns tensors about to be written, each read twice."""
    layout = Layout({name: (t.dtype, tuple(t.shape)) for name, t in ((n, read()) for n, read in readers.items())})
    return TensorSource(layout, lambda name: readers[name]())
