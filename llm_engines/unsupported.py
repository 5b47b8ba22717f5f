"""Text models, and parts of them, that are recognized and not run. A light module: no torch."""

from __future__ import annotations

import re

from vlm.artifacts.hugging_face.model_files import ModelFiles
from vlm.errors import listed
from vlm.registry.unsupported import Unsupported

ENCODER_DECODERS = ("bart", "mbart", "plbart", "marian", "pegasus", "m2m_100", "blenderbot", "blenderbot-small")
DICTIONARY = r"dict(\..+)?\.txt"
FAIRSEQ_WEIGHTS = r"(.*\.)?model\d*\.pt|checkpoint_(best|last)\.pt"


def _is_decoder_alone(model: ModelFiles) -> bool:
    names = model.architectures
    is_encoder_decoder = model.config.get("model_type") in ENCODER_DECODERS
    return is_encoder_decoder and bool(names) and all(name.endswith("ForCausalLM") for name in names)


def _decoder_alone(model: ModelFiles) -> str:
    [name, *_] = model.architectures
    whole = name.replace("CausalLM", "ConditionalGeneration")
    return f"is the decoder of an encoder-decoder model alone ({name}); give the whole model (architectures: {whole})"


def _lacks_dictionaries(model: ModelFiles) -> bool:
    """Says whether a folder of this disk is FairSeq's but for its dictionaries."""
    others = model.has_weights or model.holds("config.json", "model_config.yaml", DICTIONARY)
    return model.path is not None and model.holds(FAIRSEQ_WEIGHTS) and not others


def _without_dictionaries(model: ModelFiles) -> str:
    weights = listed(sorted(name for name in model.names if re.fullmatch(FAIRSEQ_WEIGHTS, name)), 3)
    return (
        f"holds {weights} without a config.json; if it is FairSeq's, put the dictionaries of its training beside it,"
        " which are called after the languages (dict.en.txt, dict.de.txt), else give a Hugging Face folder"
    )


UNSUPPORTED = (
    Unsupported(_lacks_dictionaries, _without_dictionaries),
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
