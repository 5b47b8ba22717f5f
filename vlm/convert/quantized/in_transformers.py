"""How transformers loads an export for compressed-tensors."""

from __future__ import annotations

from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.convert.quantized.export import FORMATS, PACKED
from vlm.layers.quant.methods import quantization_of
from vlm.registry.catalogs import configs_of, family, model_spec
from vlm.registry.weights.quantized import quantized_layers

LOADED = "quantization_config=CompressedTensorsConfig(run_compressed=False)"


def must_dequantize(checkpoint: Checkpoint) -> bool:
    """Says whether transformers 5.24 with compressed-tensors 0.20 runs an export of a checkpoint only where it
    dequantizes the weights as it loads them.

    Otherwise that is done when the whole model is first called: too late for `generate`, which calls what stands before
    a decoder by itself. For packed zero points it makes no room.
    """
    method, configs = checkpoint.quantization or "", configs_of(checkpoint)
    if method == "int4-asymmetric":
        return True
    quantization, roles = quantization_of(method, checkpoint.quantization_options), family(checkpoint.family).roles
    quantized = [
        role
        for role, model in checkpoint.roles.items()
        if quantized_layers(model_spec(model), configs[role], quantization.of_role(role))
    ]
    if "decoder" in roles and quantized != ["decoder"]:
        return True
    refused = ("none", "unpacked") if FORMATS[method][0] == PACKED else ("none",)
    return any(roles[role].hf_runs in refused for role in quantized)
