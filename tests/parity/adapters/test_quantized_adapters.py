"""Adapters over quantized weights (QLoRA's way): tokens and log-probabilities of PEFT over the dequantized dense model,
FP32 on the CPU."""

from __future__ import annotations

import pytest
import torch
from peft import IA3Config, LoraConfig
from torch import nn

from tests.kits.models import tiny
from tests.kits.models.adapted import AdaptedText
from tests.kits.models.engines import method_options
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.layers.quant.methods import quantization_of
from vlm.quantize.calibration import Calibration, recording
from vlm.quantize.config import QuantizeConfig
from vlm.quantize.model import quantize_checkpoint
from vlm.quantize.plan import plan_of

MODELS = {
    "t5": lambda: tiny.t5(seed=1, tied=False),
    "llama": lambda: tiny.llama(seed=3, num_key_value_heads=2),
    "bart": lambda: tiny.bart(seed=5, logits_bias=True),
}
GROUP, NEW = 4, 12


def kinds() -> dict:
    """PEFT writes what it finds into a configuration, so each model has its own."""
    return {
        "lora": LoraConfig(r=3, target_modules="all-linear", init_lora_weights=False),
        "narrow": LoraConfig(r=2, lora_alpha=9, init_lora_weights=False),  # of what PEFT changes by itself
        "ia3": IA3Config(init_ia3_weights=False),
        "dora": LoraConfig(r=2, use_dora=True, target_modules="all-linear", init_lora_weights=False),
    }


def round_weights(model: nn.Module, method: str) -> None:
    """Gives the layers of Hugging Face's model, but for its head and adapters, the values that a method keeps."""
    kept = quantization_of(method, {"group_size": GROUP}).method
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and not {"lm_head", "lora_A", "lora_B"} & set(name.split(".")):
            layer.weight.data = kept.dequantize(kept.quantize(layer.weight.data))


@pytest.mark.parametrize("method", ["int8", "int4", "int4-asymmetric"])
@pytest.mark.parametrize("family", MODELS)
def test_rows_have_their_adapters_over_rounded_weights(family, method, tmp_path):
    adapted = AdaptedText(MODELS[family], kinds(), tmp_path, method_options(method, GROUP))
    case = ("lora", adapted.texts[0], [5, 6, 7])
    dense = adapted.logprobs(*case)
    for model in adapted.models.values():
        round_weights(model, method)
    assert not torch.allclose(dense, adapted.logprobs(*case), atol=1e-3), "rounding makes no difference"
    adapted.check(NEW, atol=2e-4)


def test_loras_meet_inputs_as_they_are_before_separate_scales(tmp_path):
    """Of layers that are a module each in Hugging Face's model."""
    adapted = AdaptedText(MODELS["llama"], kinds(), tmp_path)
    pipe = Pipeline(adapted.engine, recording(RuntimeConfig(device="cpu")))
    requests = [pipe.request({adapted.key: text}, max_new_tokens=1) for text in adapted.texts]
    config = QuantizeConfig("awq", group_size=GROUP, scales="separate", ignore=("head", "qkv", "ffn.up"))
    small = quantize_checkpoint(
        Checkpoint.open(tmp_path / "checkpoint"), tmp_path / "small", config, calibration=Calibration(pipe, requests)
    )
    layers, parameters = plan_of(Checkpoint.open(tmp_path / "checkpoint"), config).written, small.weights("decoder")
    for layer in layers:
        own = {name: parameters[f"{layer.path}.{name}"] for name in layer.kept.specs}
        assert not torch.allclose(own["pre_quant_scale"], torch.ones(()))
        _, number, name = layer.path.split(".", 2)
        theirs = {"attention.out": "self_attn.o_proj", "ffn.down": "mlp.down_proj"}[name]
        for model in adapted.models.values():
            module = next(m for n, m in model.named_modules() if n.endswith(f"layers.{number}.{theirs}"))
            getattr(module, "base_layer", module).weight.data = layer.kept.method.dequantize(own)
    adapted.engine = build_engine(small, tmp_path / "awq", BuildConfig(max_batch_size=8))
    adapted.check(NEW, atol=2e-4)
