"""BLIP-2 over OPT and T5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from visual_engines.images.image_processors import BLIP, preferring
from vlm.artifacts.hugging_face.generation_config import generation_defaults, standing_alone
from vlm.registry.spec import ChatFormat, FamilySpec, Role


def as_question(prompt: str) -> str:
    """Returns what BLIP-2 reads: a whole sentence is put as a question, anything else (nothing, "a photo of") is gone
    on with."""
    is_sentence = prompt.rstrip().endswith(("?", ".", "!")) and "Answer:" not in prompt
    return f"Question: {prompt.strip()} Answer:" if is_sentence else prompt


def _is_blip2(*text_types: str) -> Any:
    def matches(config: dict[str, Any]) -> bool:
        text = config.get("text_config") or {}
        return (
            config.get("model_type") == "blip-2"
            and isinstance(text, dict)
            and text.get("model_type", "opt") in text_types
        )

    return matches


def _generation(config: Mapping[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of the language model's part of a configuration: Hugging Face's class has its language model
    generate, which reads no generation_config.json."""
    text = config.get("text_config")
    return standing_alone(generation_defaults(dict(text) if isinstance(text, Mapping) else {}))


def _blip2(text: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """Returns the published shapes of Salesforce/blip2-*: ViT-g and a Q-Former of 12 layers, both Hugging Face's
    defaults."""
    return {
        "model_type": "blip-2",
        "num_query_tokens": 32,
        "image_token_index": vocab_size - 1,
        "vision_config": {"model_type": "blip_2_vision_model"},
        "qformer_config": {"model_type": "blip_2_qformer"},
        "text_config": text | {"vocab_size": vocab_size},
    }


def _opt_2_7b() -> dict[str, Any]:
    return {
        "model_type": "opt",
        "hidden_size": 2560,
        "word_embed_proj_dim": 2560,
        "ffn_dim": 10240,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
        "bos_token_id": 2,
        "eos_token_id": 50118,
        "pad_token_id": 1,
    }


def _flan_t5_xl() -> dict[str, Any]:
    return {
        "model_type": "t5",
        "is_encoder_decoder": True,
        "d_model": 2048,
        "d_kv": 64,
        "d_ff": 5120,
        "num_layers": 24,
        "num_decoder_layers": 24,
        "num_heads": 32,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


BLIP2_OPT = FamilySpec(
    name="blip2-opt",
    summary="Images and text to text: BLIP-2 with an OPT decoder (Salesforce/blip2-opt-*)",
    roles={
        "visual": Role("blip2-vision"),
        "decoder": Role("opt", config_key="text_config", weight_prefix="language_model.", hf_runs="none"),
    },
    matches=_is_blip2("opt"),
    inputs=("image", "text"),
    chat_format=ChatFormat(images="first", question=as_question),
    image_processors=preferring(BLIP),
    generation_settings=_generation,
    architectures={"blip2-opt-2.7b": lambda: _blip2(_opt_2_7b(), 50304)},
)


BLIP2_T5 = FamilySpec(
    name="blip2-t5",
    summary="Images and text to text: BLIP-2 with a T5 encoder-decoder (Salesforce/blip2-flan-t5-*)",
    roles={
        "visual": Role("blip2-vision"),
        "encoder": Role(
            "t5-encoder", config_key="text_config", weight_prefix="language_model.encoder.",
            shared_prefix="language_model.",
            shared_tensors=tuple(
                f"language_model.{x}.weight" for x in ("shared", "decoder.embed_tokens", "lm_head")
            ),
        ),
        "decoder": Role(
            "t5", config_key="text_config", weight_prefix="language_model.", hf_runs="none",
            shared_tensors=("language_model.encoder.embed_tokens.weight",),
        ),
    },
    matches=_is_blip2("t5"),
    inputs=("image", "text"),
    chat_format=ChatFormat(images="first", question=as_question),
    image_processors=preferring(BLIP),
    generation_settings=_generation,
    architectures={"blip2-flan-t5-xl": lambda: _blip2(_flan_t5_xl(), 32128)},
)  # fmt: skip
