"""Text models, and parts of them, that are recognized and not run. A light module: no torch."""

from __future__ import annotations

from vlm.artifacts.model_files import ModelFiles
from vlm.registry.unsupported import Unsupported

ENCODER_DECODERS = ("bart", "mbart", "plbart", "marian", "pegasus", "m2m_100", "blenderbot", "blenderbot-small")


def _is_decoder_alone(model: ModelFiles) -> bool:
    names = model.architectures
    is_encoder_decoder = model.config.get("model_type") in ENCODER_DECODERS
    return is_encoder_decoder and bool(names) and all(name.endswith("ForCausalLM") for name in names)


def _decoder_alone(model: ModelFiles) -> str:
    [name, *_] = model.architectures
    whole = name.replace("CausalLM", "ConditionalGeneration")
    return f"is the decoder of an encoder-decoder model alone ({name}); give the whole model (architectures: {whole})"


UNSUPPORTED = (
    Unsupported(_is_decoder_alone, _decoder_alone, by_config=True),
    Unsupported(
        lambda model: model.config.get("model_type") == "nllb-moe",
        lambda model: "is NLLB-MoE, whose layers choose among experts, which is not run; give a dense NLLB-200"
                      " (--model facebook/nllb-200-3.3B)",
        by_config=True,
    ),
    Unsupported(
        lambda model: model.config.get("model_type") == "pegasus_x",
        lambda model: "is PEGASUS-X, which attends within blocks and to global tokens, which is not run; give a PEGASUS"
                      " (--model google/pegasus-large), which reads 1,024 tokens",
        by_config=True,
    ),
)  # fmt: skip
