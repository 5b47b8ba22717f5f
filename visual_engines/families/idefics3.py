"""Idefics3, SmolVLM and SmolVLM2, and what was trained from them to read documents: SmolDocling, Granite-Docling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from visual_engines.answers.doctags import is_tag
from visual_engines.answers.doctags_markdown import to_markdown
from vlm.registry.images.processor import ImageProcessorSpec, largest
from vlm.registry.images.shapes import as_it_is
from vlm.registry.images.transforms import Settings, Transform, transform_by
from vlm.registry.spec import ChatFormat, FamilySpec, Role
from vlm.registry.tokenizer_rules import TokenizerRules

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor

TEMPLATE = (
    "<|im_start|>{% for m in messages %}{{ m['role'] | capitalize }}:"
    "{% if m['content'] is string %} {{ m['content'] }}"
    "{% else %}{% if m['content'][0]['type'] != 'image' %} {% endif %}{% for part in m['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
# as their cards have it; the others were published without one
PAGE_PROMPTS: dict[str, str] = dict.fromkeys(("granite-docling", "SmolDocling"), "Convert this page to docling.")
AROUND, WHOLE = "<fake_token_around_image>", "<global-img>"
SIDES = 4  # of a tile that images are scaled to, as published
MOST_TILES = 64  # to a side
MOST_PIXELS = 4096  # a side that the class scales to


def image_text(grid: tuple[int, ...] | None) -> str:
    """Returns what stands in a prompt for an image of so many tiles down and across, and for one that is not cut."""
    down, across = grid or (0, 0)
    lines = (
        "".join(f"{AROUND}<row_{row}_col_{column}><image>" for column in range(1, across + 1)) + "\n"
        for row in range(1, down + 1)
    )
    return "".join(lines) + ("\n" if down else "") + f"{AROUND}{WHOLE}<image>{AROUND}"


def tokenizer_rules(tokenizer: Tokenizer, settings: Settings) -> TokenizerRules:
    """Returns that texts keep the tags of documents, which tokenizers of such models have as special tokens."""
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    return TokenizerRules(shown=frozenset(filter(is_tag, added)) if "<doctag>" in added else frozenset())


# --- images ---
def _settings(image_size: tuple[int, int]) -> dict[str, Any]:
    side = max(1, image_size[0] - image_size[1])  # of the largest, which is a tile higher than wide
    return {"size": {"longest_edge": SIDES * side}, "max_image_size": {"longest_edge": side}}


def _load(name: str, settings: Settings) -> Transform:
    """Returns what transformers' class does with one image, its tiles laid out as one. ValueError for tiles that are so
    small that there would be thousands."""
    import transformers

    longest, tile = (largest(settings.get(key)) for key in ("size", "max_image_size"))
    longest = longest if settings.get("do_resize", True) else MOST_PIXELS
    if tile and longest > MOST_TILES * tile:
        raise ValueError(f"it cuts images of {longest} pixels into tiles of {tile}; a side has {MOST_TILES} at most")
    # of one image all tiles have one size: padded, levels would become floats
    return transform_by(
        getattr(transformers, name), {**settings, "do_pad": False, "return_row_col_info": True}, _pixels
    )


def _pixels(processed: Mapping[str, Any], settings: Settings) -> Tensor:
    """Tiles [1, n, C, side, side] -> [1, C, H, W]"""
    from vlm.layers.images.tiles import join_tiles

    [[down]], [[across]] = processed["rows"], processed["cols"]
    return join_tiles(processed["pixel_values"][0], int(down), int(across))[None]


def _scale(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor of the side that is scaled up most: to the longest edge, then to whole tiles."""
    longest, tile = (largest(settings.get(name)) for name in ("size", "max_image_size"))
    if not longest or not tile or not settings.get("do_resize", True):
        return None
    target = min(longest, MOST_PIXELS) / max(size)
    if not settings.get("do_image_splitting", True):
        return max(target, tile / min(size))
    return max(math.ceil(side * target / tile) * tile / side for side in size)


def _sides(settings: Settings) -> dict[str, float]:
    return {name: largest(settings.get(name)) for name in ("size", "max_image_size")}


IMAGES = tuple(
    ImageProcessorSpec(name, _load, _settings, prepare=as_it_is, sides=_sides, scale=_scale)
    for name in ("Idefics3ImageProcessor", "SmolVLMImageProcessor")
)


# --- published shapes ---
def _published(tower: dict[str, Any], text: dict[str, Any], **fields: Any) -> dict[str, Any]:
    common = {"model_type": "llama", "rms_norm_eps": 1e-5, "max_position_embeddings": 8192}
    vision = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
              "image_size": 512, "patch_size": 16} | tower  # fmt: skip
    return {"model_type": "idefics3", "scale_factor": 4, "vision_config": vision, "text_config": common | text} | fields


def _granite_docling() -> dict[str, Any]:
    """Returns the published shapes of ibm-granite/granite-docling-258M."""
    text = {"vocab_size": 100352, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "rope_theta": 100000.0,
            "tie_word_embeddings": True, "bos_token_id": 100264, "eos_token_id": 100257,
            "pad_token_id": 100257}  # fmt: skip
    return _published({}, text, image_token_id=100270)


def _smolvlm_256m() -> dict[str, Any]:
    """Returns the published shapes of HuggingFaceTB/SmolVLM-256M-Instruct."""
    text = {"vocab_size": 49280, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
            "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "rope_theta": 100000.0,
            "bos_token_id": 1, "eos_token_id": 49279, "pad_token_id": 2}  # fmt: skip
    return _published({}, text, image_token_id=49190)


def _smolvlm_2b() -> dict[str, Any]:
    """Returns the published shapes of HuggingFaceTB/SmolVLM-Instruct."""
    tower = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
             "image_size": 384, "patch_size": 14}  # fmt: skip
    text = {"vocab_size": 49155, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
            "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 64, "rope_theta": 273768.0,
            "max_position_embeddings": 16384, "bos_token_id": 1, "eos_token_id": 49154, "pad_token_id": 2}  # fmt: skip
    return _published(tower, text, scale_factor=3, image_token_id=49153)


IDEFICS3 = FamilySpec(
    name="idefics3",
    summary="Images and text, pages to markdown: SmolVLM, SmolVLM2, Granite-Docling (ibm-granite/granite-docling-258M)",
    roles={
        "visual": Role("idefics3-vision"),
        "decoder": Role("llama", config_key="text_config", weight_prefix="language_model.", tied=False),
    },
    matches=lambda config: config.get("model_type") in ("idefics3", "smolvlm"),
    base_prefixes=("model.",),
    renames={
        "model.text_model.": "language_model.model.",
        "lm_head.": "language_model.lm_head.",
        "model.vision_model.": "vision_model.",
        "model.connector.": "connector.",
    },
    inputs=("image", "text"),
    chat_format=ChatFormat(template=TEMPLATE, image_text=image_text),
    image_processors=IMAGES,
    tokenizer_rules=tokenizer_rules,
    postprocess=to_markdown,
    loop_detection=True,
    page_prompts=PAGE_PROMPTS,
    architectures={
        "granite-docling-258m": _granite_docling,
        "smolvlm-256m": _smolvlm_256m,
        "smolvlm-2.2b": _smolvlm_2b,
    },
)
