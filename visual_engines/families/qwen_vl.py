"""Qwen2-VL and Qwen2.5-VL, and what was trained from them to read documents: olmOCR, Nanonets-OCR, MinerU2.5."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from visual_engines.families.mineru import MINERU
from vlm.errors import ImageError
from vlm.registry.images import ImageProcessorSpec, Settings, Transform, largest, transform_by
from vlm.registry.spec import ChatFormat, FamilySpec, Role

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

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
SIZES = {"patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}  # where the settings do not say
SLIMMEST = 200  # longest side over shortest that its processor takes
LEAST_PIXELS = 56 * 56  # as published; the class itself has fewer at most


def _settings(image_size: tuple[int, int]) -> dict[str, Any]:
    return {"min_pixels": LEAST_PIXELS, "max_pixels": math.prod(image_size)}


def _load(name: str, settings: Settings) -> Transform:
    """Returns what transformers' class does with one image, its patches put together again: whole squares of one frame,
    which it scales alike and moves in a third of the time that it takes for their patches in two equal frames."""
    import transformers

    _check_sizes(settings)
    square = _square(settings)
    one = {"patch_size": square, "merge_size": 1, "temporal_patch_size": 1}
    return transform_by(getattr(transformers, name), {**settings, **one}, _pixels, square=square)


def _check_sizes(settings: Settings) -> None:
    """Raises ValueError for sizes that the class could not cut patches by, which it is not told."""
    for name in SIZES:
        size = settings.get(name)
        if size is not None and not (isinstance(size, int) and size > 0):
            raise ValueError(f"{name} is {size}; it must be a whole number above 0")


def _square(settings: Settings) -> int:
    """Returns the pixels a side of what becomes one row of the language model."""
    return _size(settings, "patch_size") * _size(settings, "merge_size")


def _size(settings: Settings, name: str) -> int:
    return settings.get(name) or SIZES[name]


def _pixels(processed: Mapping[str, Any], settings: Settings) -> Tensor:
    """Squares [rows · columns, C · side²] -> [1, C, H, W]"""
    side = settings["patch_size"]
    [[_, rows, columns]] = processed["image_grid_thw"].tolist()
    squares = processed["pixel_values"].view(rows, columns, -1, side, side)
    return squares.permute(2, 0, 3, 1, 4).reshape(1, -1, rows * side, columns * side)


def _checked(image: Image.Image, settings: Settings) -> Image.Image:
    """Raises ImageError for an image that the processor does not take: a slim one, and one that it does not scale and
    cannot divide."""
    sides = image.size
    if not settings.get("do_resize", True):
        if any(side % _square(settings) for side in sides):
            raise ImageError(
                f"an image is {sides[0]} × {sides[1]} pixels; this model's preprocessor_config.json scales none"
                f" (do_resize: false) and takes sides that are multiples of {_square(settings)}: scale or crop it."
            )
        return image
    if max(sides) > SLIMMEST * min(sides):
        raise ImageError(
            f"an image is {sides[0]} × {sides[1]} pixels; this model reads those that are at most {SLIMMEST} times as"
            " long as wide: cut it into parts."
        )
    return image


def _scale(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor that brings an image into the range of pixels; None where none is scaled."""
    if not settings.get("do_resize", True):
        return None
    said, pixels = settings.get("size") or {}, size[0] * size[1]
    least = settings.get("min_pixels") or said.get("shortest_edge") or LEAST_PIXELS
    most = settings.get("max_pixels") or said.get("longest_edge") or 28 * 28 * 1280
    return math.sqrt(min(max(pixels, least), most) / pixels)


def _sides(settings: Settings) -> dict[str, float]:
    """Returns the pixels a side of the squares that settings scale to, and of the smallest."""
    pixels = {name: largest(settings.get(name)) for name in ("size", "min_pixels", "max_pixels")}
    square = math.prod(settings.get(name) or 1 for name in SIZES)
    return {name: math.sqrt(count) for name, count in pixels.items()} | {"patch_size": square}


QWEN_IMAGES = ImageProcessorSpec(
    "Qwen2VLImageProcessor",
    load=_load,
    default_settings=_settings,
    prepare=_checked,
    sides=_sides,
    scale=_scale,
)


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
    renames={"model.visual.": "visual.", "model.language_model.": "model."},
    inputs=("image", "text"),
    chat_format=ChatFormat(template=TEMPLATE, placeholder="<|image_pad|>"),
    image_processors=(QWEN_IMAGES,),
    loop_detection=True,
    page_prompts=PAGE_PROMPTS,
    page_steps=(MINERU,),
    architectures={"qwen2.5-vl-3b": _qwen25_3b},
)
