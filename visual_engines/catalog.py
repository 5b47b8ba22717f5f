"""What this package brings to the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from visual_engines.unsupported import UNSUPPORTED as UNSUPPORTED
from vlm.artifacts.files import load_json
from vlm.registry.spec import ConverterRef, FamilySpec, ModelRef, PromptFormat, Role

MODELS = (
    ModelRef("blip2-vision", "visual_engines.models.blip2:SPEC"),
    ModelRef("donut-swin", "visual_engines.models.swin:SPEC"),
    ModelRef("llava-vision", "visual_engines.models.llava:SPEC"),
    ModelRef("vila-vision", "visual_engines.models.vila:SPEC"),
)


def _is_llava(folder: Path) -> bool:
    """LLaVA's own form, which llava-hf's folders do not have. VILA names itself so too."""
    try:
        config = load_json(folder / "config.json")
    except (OSError, ValueError):
        return False
    return (
        isinstance(config, dict)
        and config.get("model_type") in ("llava_llama", "llava_mistral", "llava")
        and any(name.startswith("mm_") for name in config)
    )


CONVERTERS = (
    ConverterRef("vila", "visual_engines.converters.vila:convert", lambda f: _is_llava(f) and (f / "llm").is_dir()),
    ConverterRef("llava", "visual_engines.converters.llava:convert", _is_llava),
)

# of Vicuna, on which LLaVA and VILA were built: a conversation in words
VICUNA = (
    "{% for m in messages %}{% if m['role'] != 'system' %}{{ m['role'].upper() + ': ' }}{% endif %}"
    "{% for part in m['content'] %}{{ '<image>\n' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    "{{ eos_token if m['role'] == 'assistant' else ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, and"
    " polite answers to the user's questions. "
)


def vicuna(system: str) -> str:
    """Returns Vicuna's template with a sentence that begins each conversation."""
    return f"{{{{ {system!r} }}}}{VICUNA}"


def _is_nougat(config: dict[str, Any]) -> bool:
    parts = [config.get(part) or {} for part in ("encoder", "decoder")]
    types = [part.get("model_type") if isinstance(part, dict) else None for part in parts]
    return config.get("model_type") in ("vision-encoder-decoder", "nougat") and types == ["donut-swin", "mbart"]


def _is_blip2(*text_types: str) -> Any:
    def matches(config: dict[str, Any]) -> bool:
        text = config.get("text_config") or {}
        return (
            config.get("model_type") == "blip-2"
            and isinstance(text, dict)
            and text.get("model_type", "opt") in text_types
        )

    return matches


def _nougat(decoder_layers: int, max_positions: int) -> dict[str, Any]:
    """The published shapes of facebook/nougat-*, which share their encoder."""
    return {
        "model_type": "vision-encoder-decoder",
        "decoder_start_token_id": 0,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "encoder": {
            "model_type": "donut-swin",
            "image_size": [896, 672],
            "patch_size": 4,
            "num_channels": 3,
            "embed_dim": 128,
            "depths": [2, 2, 14, 2],
            "num_heads": [4, 8, 16, 32],
            "window_size": 7,
            "mlp_ratio": 4.0,
            "qkv_bias": True,
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-5,
        },
        "decoder": {
            "model_type": "mbart",
            "is_decoder": True,
            "add_cross_attention": True,
            "is_encoder_decoder": False,
            "vocab_size": 50000,
            "d_model": 1024,
            "decoder_layers": decoder_layers,
            "encoder_layers": decoder_layers,
            "decoder_attention_heads": 16,
            "decoder_ffn_dim": 4096,
            "max_position_embeddings": max_positions,
            "activation_function": "gelu",
            "scale_embedding": True,
            "add_final_layer_norm": True,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "pad_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 0,
        },
    }


def _llava(hidden: int, ffn: int, layers: int, heads: int) -> dict[str, Any]:
    """The published shapes of llava-hf/llava-1.5-*."""
    return {
        "model_type": "llava",
        "image_token_index": 32000,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
        "projector_hidden_act": "gelu",
        "vision_config": _clip_large_336(),
        "text_config": {
            "model_type": "llama",
            "vocab_size": 32064,
            "hidden_size": hidden,
            "intermediate_size": ffn,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    }


def _clip_large_336() -> dict[str, Any]:
    return {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
        "projection_dim": 768,
    }


def _blip2(text: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """The published shapes of Salesforce/blip2-*: ViT-g and a Q-Former of 12 layers, both Hugging Face's defaults."""
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


def _vila_3b() -> dict[str, Any]:
    """The published shape of Efficient-Large-Model/VILA1.5-3b: SigLIP at 384 pixels, Sheared LLaMA 2.7B."""
    return {
        "model_type": "vila",
        "visual": {
            "vision_tower": {
                "model_type": "siglip_vision_model",
                "hidden_size": 1152,
                "intermediate_size": 4304,
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "image_size": 384,
                "patch_size": 14,
            },
            "mm_vision_select_layer": -2,
            "mm_vision_select_feature": "cls_patch",
            "mm_projector_type": "mlp_downsample",
            "hidden_size": 2560,
        },
        "decoder": {
            "model_type": "llama",
            "vocab_size": 32000,
            "hidden_size": 2560,
            "intermediate_size": 6912,
            "num_hidden_layers": 32,
            "num_attention_heads": 20,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    }


FAMILIES = (
    FamilySpec(
        name="nougat",
        summary="Document pages to markdown: Swin encoder, mBART decoder (facebook/nougat-*)",
        roles={
            "visual": Role("donut-swin", config_key="encoder", weight_prefix="encoder."),
            "decoder": Role("bart", config_key="decoder", weight_prefix="decoder."),
        },
        matches=_is_nougat,
        inputs=("image",),
        postprocess="vlm.processing.nougat:to_markdown",
        loop_detection=True,
        architectures={
            "nougat-base": lambda: _nougat(decoder_layers=10, max_positions=4096),
            "nougat-small": lambda: _nougat(decoder_layers=4, max_positions=3584),
        },
    ),
    FamilySpec(
        name="llava",
        summary="Images and text to text: LLaVA-1.5 (llava-hf/llava-1.5-*)",
        roles={
            "visual": Role("llava-vision"),
            "decoder": Role("llama", config_key="text_config", weight_prefix="language_model."),
        },
        matches=lambda config: config.get("model_type") == "llava",
        renamed={
            "model.language_model.": "language_model.model.",
            "lm_head.": "language_model.lm_head.",
            "model.vision_tower.": "vision_tower.",
            "model.multi_modal_projector.": "multi_modal_projector.",
        },
        inputs=("image", "text"),
        prompt=PromptFormat(template=VICUNA),
        image_processor="CLIPImageProcessor",
        architectures={
            "llava-1.5-7b": lambda: _llava(4096, 11008, 32, 32),
            "llava-1.5-13b": lambda: _llava(5120, 13824, 40, 40),
        },
    ),
    FamilySpec(
        name="blip2-opt",
        summary="Images and text to text: BLIP-2 with an OPT decoder (Salesforce/blip2-opt-*)",
        roles={
            "visual": Role("blip2-vision"),
            "decoder": Role("opt", config_key="text_config", weight_prefix="language_model."),
        },
        matches=_is_blip2("opt"),
        inputs=("image", "text"),
        prompt=PromptFormat(images="first", question="Question: {prompt} Answer:"),
        image_processor="BlipImageProcessor",
        architectures={"blip2-opt-2.7b": lambda: _blip2(_opt_2_7b(), 50304)},
    ),
    FamilySpec(
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
                "t5", config_key="text_config", weight_prefix="language_model.",
                shared_tensors=("language_model.encoder.embed_tokens.weight",),
            ),
        },
        matches=_is_blip2("t5"),
        inputs=("image", "text"),
        prompt=PromptFormat(images="first", question="Question: {prompt} Answer:"),
        image_processor="BlipImageProcessor",
        architectures={"blip2-flan-t5-xl": lambda: _blip2(_flan_t5_xl(), 32128)},
    ),
    FamilySpec(
        name="vila",
        summary="Images and text to text: VILA (Efficient-Large-Model/VILA*)",
        roles={
            "visual": Role("vila-vision", config_key="visual"),
            "decoder": Role("llama", config_key="decoder", weight_prefix="llm."),
        },
        matches=lambda config: config.get("model_type") == "vila",
        inputs=("image", "text"),
        prompt=PromptFormat(template=vicuna(VICUNA_SYSTEM)),
        image_processor="SiglipImageProcessor",
        architectures={"vila-1.5-3b": _vila_3b},
    ),
)  # fmt: skip
