"""Qwen2-VL and Qwen2.5-VL, and what was trained from them to read documents: olmOCR, Nanonets-OCR, MinerU2.5."""

from __future__ import annotations

from typing import Any

from visual_engines.families.mineru import MINERU
from visual_engines.images.qwen_images import QWEN_IMAGES
from vlm.registry.spec import ChatFormat, FamilySpec, Role

TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# as their publishers have them: olmocr's build_no_anchoring_v4_yaml_prompt, and the card of Nanonets-OCR2
PAGE_PROMPTS = {
    "olmOCR-2": (
        "Attached is one page of a document that you must process. Just return the plain text representation of this"
        " document as if you were reading it naturally. Convert equations to LateX and tables to HTML.\n"
        "If there are any figures or charts, label them with the following markdown syntax ![Alt text describing the"
        " contents of the figure](page_startx_starty_width_height.png)\n"
        "Return your output as markdown, with a front matter section on top specifying values for the primary_language,"
        " is_rotation_valid, rotation_correction, is_table, and is_diagram parameters.<image>"
    ),
    "Nanonets-OCR": (
        "Extract the text from the above document as if you were reading it naturally. Return the tables in html"
        " format. Return the equations in LaTeX representation. If there is an image in the document and image caption"
        " is not present, add a small description of the image inside the <img></img> tag; otherwise, add the image"
        " caption inside <img></img>. Watermarks should be wrapped in brackets. Ex: <watermark>OFFICIAL COPY"
        "</watermark>. Page numbers should be wrapped in brackets. Ex: <page_number>14</page_number> or <page_number>"
        "9/22</page_number>. Prefer using ☐ and ☑ for check boxes."
    ),
}


def _qwen25_3b() -> dict[str, Any]:
    """Returns the published shapes of Qwen/Qwen2.5-VL-3B-Instruct."""
    return {
        "model_type": "qwen2_5_vl",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128000,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "image_token_id": 151655,
        "vision_config": {
            "depth": 32,
            "hidden_act": "silu",
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "out_hidden_size": 2048,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
            "temporal_patch_size": 2,
        },
    }


QWEN_VL = FamilySpec(
    name="qwen-vl",
    summary="Images and text: Qwen2-VL, Qwen2.5-VL and olmOCR, Nanonets-OCR, MinerU2.5 (Qwen/Qwen2.5-VL-*)",
    roles={"visual": Role("qwen-vl-vision", weight_prefix="visual."), "decoder": Role("llama")},
    matches=lambda config: config.get("model_type") in ("qwen2_vl", "qwen2_5_vl"),
    base_prefixes=("model.",),
    renames={"model.visual.": "visual.", "model.language_model.": "model."},
    inputs=("image", "text"),
    chat_format=ChatFormat(template=TEMPLATE, placeholder="<|image_pad|>"),
    image_processors=(QWEN_IMAGES,),
    loop_detection=True,
    page_prompts=PAGE_PROMPTS,
    page_steps=(MINERU,),
    architectures={"qwen2.5-vl-3b": _qwen25_3b},
)
