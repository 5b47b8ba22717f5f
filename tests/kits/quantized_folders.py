"""Folders of quantized models and the logits that are expected of them: converted, built and run here."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.checkout import ROOT
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint, write_checkpoint
from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.weights import TensorSource
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.layers.quant.methods import quantization_of
from vlm.registry.weights.quantized import quantized

FOLDERS = ROOT / "tests" / "quantized"  # of tests/kits/quantizers.py


def built(folder: Path, scratch: Path, **build) -> tuple[Checkpoint, Pipeline]:
    """Returns what a folder becomes, in float32 on the CPU."""
    checkpoint = convert_folder(folder, scratch / "checkpoint")
    engine = build_engine(checkpoint, scratch / "engine", BuildConfig(**build))
    return checkpoint, Pipeline(engine, RuntimeConfig(device="cpu"))


def quantized_checkpoint(plain: Checkpoint, out, name: str = "int4", **options) -> Checkpoint:
    """Writes a checkpoint quantized without a build."""
    roles = {}
    for role, model in plain.roles.items():
        weights = RoleWeights(model, plain.config(role), TensorSource.from_tensors(plain.weights(role)))
        roles[role] = quantized(weights, quantization_of(name, options).of_role(role))
    return write_checkpoint(
        out, family=plain.family, roles=roles, generation=plain.generation, source=plain.source, quantization=name,
        quantization_options=options,
    )  # fmt: skip


def prompt_logits(pipe: Pipeline, expected: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns our logits [V] after the whole input, and those that are expected."""
    source = {"input_ids": expected["input_ids"][0].tolist()}
    if "decoder_input_ids" in expected:
        source |= {
            "encoder_input_ids": source.pop("input_ids"),
            "decoder_prompt_token_ids": expected["decoder_input_ids"][0].tolist(),
        }
    [output] = pipe.generate([source], max_new_tokens=1, ignore_eos=True, return_generation_logits=True)
    return output.generation_logits[0], expected["logits"][-1]


def expected_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "expected.safetensors")


def packed_llama(model, out: Path, weights: dict, inputs: dict | None):
    """Saves a model as compressed-tensors packs it, by the library's own compressor, and returns it with the weights
    that the library unpacks."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    inputs = inputs and {"num_bits": weights["num_bits"], "type": weights["type"], **inputs}
    kind = "pack-quantized" if inputs is None else f"{weights['type']}-quantized"
    scheme = QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)
    compressor, state = BaseCompressor.get_value_from_registry(kind), dict(model.state_dict())
    for name, layer in model.model.layers.named_modules():
        if isinstance(layer, torch.nn.Linear):
            grouped = _grouped(layer.weight.data, weights)
            scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), scheme.weights)
            dense = {"weight": layer.weight.data, "weight_scale": scale, "weight_zero_point": zero}
            packed = compressor.compress(dense, scheme)
            layer.weight.data = compressor.decompress(dict(packed), scheme)["weight"].float()
            packed |= {} if inputs is None or inputs.get("dynamic") else {"input_scale": torch.tensor([0.05])}
            del state[f"model.layers.{name}.weight"]
            state |= {f"model.layers.{name}.{key}": value.contiguous() for key, value in packed.items()}
    settings = {"quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"]}
    settings["config_groups"] = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}}
    out.mkdir(parents=True)
    save_file(state, out / "model.safetensors")
    config = {**model.config.to_dict(), "architectures": [type(model).__name__], "quantization_config": settings}
    (out / "config.json").write_text(json.dumps(config))
    return model


def _grouped(weight: torch.Tensor, weights: dict) -> torch.Tensor:
    """Returns the values that share a scale along the last dimension."""
    if weights["strategy"] == "tensor":
        return weight.reshape(1, -1)
    return weight[:, None] if weights["strategy"] == "channel" else weight.unflatten(1, (-1, weights["group_size"]))
