"""VILA and VILA-1.5."""

from __future__ import annotations

from typing import Any

from visual_engines.families.llava import is_llava
from visual_engines.families.vicuna import VICUNA_SYSTEM, vicuna
from visual_engines.images.image_processors import SIGLIP, preferring
from vlm.registry.spec import ChatFormat, ConverterRef, FamilySpec, Role


def _vila_3b() -> dict[str, Any]:
    """Returns the published shape of Efficient-Large-Model/VILA1.5-3b: SigLIP at 384 pixels, Sheared LLaMA 2.7B."""
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


CONVERTER = ConverterRef(
    "vila", "VILA", "visual_engines.converters.vila:convert", lambda f: is_llava(f) and (f / "llm").is_dir()
)


VILA = FamilySpec(
    name="vila",
    summary="Images and text to text: VILA (Efficient-Large-Model/VILA*)",
    roles={
        "visual": Role("vila-vision", config_key="visual"),
        "decoder": Role("llama", config_key="decoder", weight_prefix="llm."),
    },
    matches=lambda config: config.get("model_type") == "vila",
    inputs=("image", "text"),
    chat_format=ChatFormat(template=vicuna(VICUNA_SYSTEM)),
    image_processors=preferring(SIGLIP),
    architectures={"vila-1.5-3b": _vila_3b},
)
