"""LightOnOCR: pages of documents to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from visual_engines.images.pixtral_images import PIXTRAL_IMAGES
from vlm.registry.spec import ChatFormat, FamilySpec, Role

# a page alone in the user's turn is what the model was trained to read
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|image_pad|>{% else %}{{ part['text'] }}\n{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def is_lighton(config: Mapping[str, Any]) -> bool:
    """Knows the first folders, too, which name Mistral 3's model_type and a class of LightOn's."""
    return config.get("model_type") == "lighton_ocr" or "LightOnOCR" in str(config.get("architectures"))


def _lighton_1b() -> dict[str, Any]:
    """Returns the published shapes of lightonai/LightOnOCR-1B-1025 and LightOnOCR-2-1B."""
    return {
        "model_type": "lighton_ocr",
        "image_token_id": 151655,
        "spatial_merge_size": 2,
        "vision_config": {
            "model_type": "pixtral",
            "hidden_size": 1024,
            "intermediate_size": 4096,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "head_dim": 64,
            "image_size": 1540,
            "patch_size": 14,
            "hidden_act": "silu",
        },
        "text_config": {
            "model_type": "qwen3",
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 16384,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000,
            "tie_word_embeddings": True,
            "eos_token_id": 151645,
        },
    }


LIGHTON_OCR = FamilySpec(
    name="lighton-ocr",
    summary="Document pages to text: LightOnOCR (lightonai/LightOnOCR-*)",
    roles={
        "visual": Role("lighton-ocr-vision"),
        "decoder": Role("llama", config_key="text_config", weight_prefix="language_model.", tied=True),
    },
    matches=is_lighton,
    base_prefixes=("model.", "language_model.model."),  # the latter of other releases
    renames={
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.vision_encoder.": "vision_encoder.",
        "model.vision_projection.": "vision_projection.",
    },
    inputs=("image", "text"),
    chat_format=ChatFormat(template=TEMPLATE, placeholder="<|image_pad|>"),
    image_processors=(PIXTRAL_IMAGES,),
    loop_detection=True,
    architectures={"lightonocr-1b": _lighton_1b},
)
