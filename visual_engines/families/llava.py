"""LLaVA-1.5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from visual_engines.families.vicuna import VICUNA
from visual_engines.images.image_processors import CLIP, preferring
from vlm.artifacts.files import load_json
from vlm.registry.spec import ChatFormat, ConverterRef, FamilySpec, Role


def is_llava(folder: Path) -> bool:
    """Recognizes LLaVA's own form, which llava-hf's folders do not have. VILA names itself so too."""
    try:
        config = load_json(folder / "config.json")
    except (OSError, ValueError):
        return False
    return (
        isinstance(config, dict)
        and config.get("model_type") in ("llava_llama", "llava_mistral", "llava")
        and any(name.startswith("mm_") for name in config)
    )


def _llava(hidden: int, ffn: int, layers: int, heads: int) -> dict[str, Any]:
    """Returns the published shapes of llava-hf/llava-1.5-*."""
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


CONVERTER = ConverterRef("llava", "LLaVA", "visual_engines.converters.llava:convert", is_llava)


LLAVA = FamilySpec(
    name="llava",
    summary="Images and text to text: LLaVA-1.5 (llava-hf/llava-1.5-*)",
    roles={
        "visual": Role("llava-vision"),
        "decoder": Role("llama", config_key="text_config", weight_prefix="language_model.", tied=False),
    },
    matches=lambda config: config.get("model_type") == "llava",
    renames={
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.vision_tower.": "vision_tower.",
        "model.multi_modal_projector.": "multi_modal_projector.",
        # and those of adapters in LLaVA's own form
        "model.layers.": "language_model.model.layers.",
        "model.mm_projector.0.": "multi_modal_projector.linear_1.",
        "model.mm_projector.2.": "multi_modal_projector.linear_2.",
    },
    inputs=("image", "text"),
    chat_format=ChatFormat(template=VICUNA),
    image_processors=preferring(CLIP),
    architectures={
        "llava-1.5-7b": lambda: _llava(4096, 11008, 32, 32),
        "llava-1.5-13b": lambda: _llava(5120, 13824, 40, 40),
    },
)
