"""Pix2Struct, DePlot and MatCha: screens, charts and documents to text, in patches of the picture's own shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vlm.errors import shown
from vlm.registry.images.processor import ImageProcessorSpec, QuestionUse, largest
from vlm.registry.images.shapes import as_it_is
from vlm.registry.images.transforms import Settings, Transform, transform_by
from vlm.registry.spec import FamilySpec, Role

if TYPE_CHECKING:
    from pathlib import Path

    from PIL import Image
    from torch import Tensor

PROCESSOR = "Pix2StructImageProcessor"
MAX_PATCHES, SIDE = 2048, 16  # of settings that say nothing, as the class has them


def _load(name: str, settings: Settings) -> Transform:
    """Returns what the class does with pictures on which a question stands already."""
    import transformers

    side = settings.get("patch_size") or {"height": SIDE, "width": SIDE}
    if not isinstance(side, Mapping) or side.get("height") != side.get("width"):
        raise ValueError(f"patch_size is {shown(side)}, it must have an equal height and width")
    return transform_by(getattr(transformers, name), {**settings, "is_vqa": False}, _as_pixels)


def _as_pixels(processed: Mapping[str, Any], settings: Settings) -> Tensor:
    """Puts patches [n, R, 2 + side² · 3], which begin with their row and column from 1 on, together to images
    [n, 3, rows · side, columns · side]."""
    patches = processed["flattened_patches"]
    rows, columns = (int(patches[..., axis].max()) for axis in (0, 1))
    values = patches[:, : rows * columns, 2:]
    side = math.isqrt(values.shape[2] // 3)
    return values.view(-1, rows, columns, side, side, 3).permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)


def _no_settings(image_size: tuple[int, int]) -> dict[str, Any]:
    return {}  # the class's own


def _sides(settings: Settings) -> dict[str, float]:
    """Returns the pixels a side that a square picture is scaled to."""
    patches, side = largest(settings.get("max_patches", MAX_PATCHES)), largest(settings.get("patch_size", SIDE))
    return {"max_patches": math.sqrt(max(patches, 0)) * side}


def _scale(size: tuple[float, float], settings: Settings) -> float | None:
    """Returns the factor that gives a picture as many patches as it may have; a question takes some of them."""
    return _sides(settings)["max_patches"] / math.sqrt(size[0] * size[1])


def _question_use(settings: Settings) -> QuestionUse:
    """Says where a question goes, as transformers' processor has it for a text: on the picture of a model that was
    trained so, else to where the output begins."""
    return QuestionUse.DRAWN if settings.get("is_vqa") else QuestionUse.BEGINS


def _draw_question(image: Image.Image, question: str, folder: Path | None) -> Image.Image:
    from visual_engines.images.question_header import with_header  # Pillow, which a list of families does not need

    return with_header(image, question, folder)


def _is_pix2struct(config: dict[str, Any]) -> bool:
    return config.get("model_type") == "pix2struct"


def _pix2struct(width: int, layers: int, heads: int, ffn: int) -> dict[str, Any]:
    """Returns the published shapes of google/pix2struct-*."""
    sizes = {"hidden_size": width, "d_ff": ffn, "d_kv": 64}
    text = {"num_layers": layers, "num_heads": heads, "vocab_size": 50244}
    vision = {"num_hidden_layers": layers, "num_attention_heads": heads, "patch_embed_hidden_size": 768}
    return {
        "model_type": "pix2struct",
        "tie_word_embeddings": False,
        "text_config": {"model_type": "pix2struct_text_model", **sizes, **text},
        "vision_config": {"model_type": "pix2struct_vision_model", **sizes, **vision, "seq_len": 4096},
    }


PIX2STRUCT = FamilySpec(
    name="pix2struct",
    summary="Screens, charts and documents to text: Pix2Struct, DePlot, MatCha (google/pix2struct-*, deplot, matcha-*)",
    roles={
        "visual": Role("pix2struct-vision", config_key="vision_config", weight_prefix="encoder."),
        "decoder": Role("pix2struct-text", weight_prefix="decoder.", hf_runs="unpacked"),
    },
    matches=_is_pix2struct,
    inputs=("image",),
    image_processors=(
        ImageProcessorSpec(
            PROCESSOR,
            _load,
            default_settings=_no_settings,
            prepare=as_it_is,  # slivers, too: whatever its shape, a picture has a patch to a side at least
            sides=_sides,
            scale=_scale,
            question_use=_question_use,
            draw_question=_draw_question,
        ),
    ),
    page_prompts={"deplot": "Generate underlying data table of the figure below:"},  # as its card has it
    architectures={
        "pix2struct-base": lambda: _pix2struct(768, 12, 12, 2048),
        "pix2struct-large": lambda: _pix2struct(1536, 18, 24, 3968),
    },
)
