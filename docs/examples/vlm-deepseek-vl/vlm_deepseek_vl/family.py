"""DeepSeek-VL: questions and conversations about images."""

from __future__ import annotations

from vlm.registry.spec import ChatFormat, FamilySpec, Role
from vlm_deepseek_vl.images import DEEPSEEK

SYSTEM = (
    "You are a helpful language and vision assistant. You are able to understand the visual content that the user"
    " provides, and assist the user with a variety of tasks using natural language."
)
END = "<｜end▁of▁sentence｜>"
# contents as texts, in which an image stands as <image>
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ " + repr(SYSTEM) + " + '\n\n' }}{% endif %}"
    "{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ m['content'] + '\n\n' }}"
    "{% elif m['role'] == 'user' %}{{ 'User: ' + m['content'] + '\n\n' }}"
    "{% else %}{{ 'Assistant: ' + m['content'] + " + repr(END) + " }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)

DEEPSEEK_VL = FamilySpec(
    name="deepseek-vl",
    summary="Images and text to text: DeepSeek-VL (deepseek-community/deepseek-vl-1.3b-*)",
    roles={
        "visual": Role("deepseek-vl-vision"),
        "decoder": Role("llama", config_key="text_config", weight_prefix="language_model."),
    },
    matches=lambda config: config.get("model_type") == "deepseek_vl",
    renames={
        "model.language_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.vision_model.": "vision_model.",
        "model.aligner.": "aligner.",
    },
    inputs=("image", "text"),
    chat_format=ChatFormat(template=TEMPLATE, placeholder="<image_placeholder>"),
    image_processors=(DEEPSEEK,),
)
