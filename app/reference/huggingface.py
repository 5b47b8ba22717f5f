"""Hugging Face's models: which folder a name stands for, what class loads it, and without its hints and bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visual_engines.families.florence2_layout import is_remote
from vlm.artifacts.files import read_json
from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.build.locate import locate
from vlm.errors import InputError, first_line, listed
from vlm.registry.catalogs import converter_of, match_family

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from vlm.api.pipeline import Pipeline

WITH_IMAGES = {  # model_type -> class
    "blip-2": "Blip2ForConditionalGeneration",
    "florence2": "Florence2ForConditionalGeneration",
    "idefics3": "Idefics3ForConditionalGeneration",
    "lighton_ocr": "LightOnOcrForConditionalGeneration",
    "llava": "LlavaForConditionalGeneration",
    "pix2struct": "Pix2StructForConditionalGeneration",
    "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
    "qwen2_vl": "Qwen2VLForConditionalGeneration",
    "smolvlm": "SmolVLMForConditionalGeneration",
    "t5gemma2": "T5Gemma2ForConditionalGeneration",
    "vision-encoder-decoder": "VisionEncoderDecoderModel",
}


def quiet() -> None:
    """Turns its progress bars and hints off, which are not this program's output."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def folder_of(model: str | Path, **options: Any) -> Path:
    """Returns the Hugging Face folder that a model's name stands for; InputError where there is none, or no class for
    it."""
    source = locate(model, **options)
    if source.kind in ("engine", "checkpoint"):
        what = "an engine" if source.kind == "engine" else "a checkpoint"
        raise InputError(
            f"{model} is {what}, and Hugging Face runs the folder that it was made of: give that by --against FOLDER,"
            " or compare with vlm verify ENGINE --against FOLDER."
        )
    converter = converter_of(source.path)
    config = {} if converter else read_json(source.path / "config.json", InputError, "Hugging Face model folder")
    kind = converter.name if converter else config.get("model_type")
    if converter or not _known(kind):
        raise InputError(f"Hugging Face's transformers has no class for {kind} models; there is nothing to compare to.")
    if kind == "florence2" and is_remote(config):
        raise InputError(
            f"{model} is in Microsoft's own layout, which no class of transformers reads; give the same model as"
            " florence-community has it."
        )
    return source.path


def check_family(folder: Path, pipeline: Pipeline) -> None:
    """Raises InputError for a folder of another family than an engine's."""
    if (family := match_family(HFFolder(folder).config, folder).name) != pipeline.family.name:
        raise InputError(
            f"{folder.name} is a {family} model, the engine was made of a {pipeline.family.name} model; give the folder"
            " that it was made of."
        )


def _known(model_type: Any) -> bool:
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def model_class(folder: Path) -> type[PreTrainedModel]:
    """Returns what loads the folder's model as a whole. Raises InputError for a configuration that Hugging Face
    refuses."""
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    try:
        config = transformers.AutoConfig.from_pretrained(folder)
    except (ValueError, StrictDataclassError) as error:
        raise InputError(
            f"Hugging Face's transformers refuses the config.json of {folder.name}:"
            f" {first_line(error.__cause__ or error)}; mend it, or give the folder as it was published."
        ) from error
    rest = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
    return getattr(transformers, WITH_IMAGES.get(config.model_type, rest))


def load_whole(folder: Path, dtype: torch.dtype) -> Any:
    """Loads the folder's model as a whole. Raises InputError for a folder that lacks weights of its class, which draws
    them at random: it is of another network, as SantaCoder is whose configuration calls it a GPT-2."""
    kind: Any = model_class(folder)
    model, info = kind.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    # buffers are computed
    if missing := sorted(info["missing_keys"] & {name for name, _ in model.named_parameters()}):
        raise InputError(
            f"{folder.name} has no {listed(missing, 3)}, which transformers' {type(model).__name__} would draw at"
            " random: it is of another network; there is nothing to compare to."
        )
    return model


def language_part(model: Any) -> Any:
    """Returns what a text alone goes through: BLIP-2 as a whole takes none."""
    return model.language_model if hasattr(model, "qformer") else model


def image_inputs(model: Any, pixel_values: Tensor, input_ids: Tensor | None = None) -> dict[str, Tensor]:
    """Returns what a model takes of images [n, C, H, W], which stand in these ids: with their sizes where its tower
    reads images of any."""
    tower: Any = getattr(model.config, "vision_config", None)
    if model.config.model_type == "pix2struct":
        return flattened(pixel_values, math.isqrt(tower.patch_embed_hidden_size // pixel_values.shape[1]))
    if model.config.model_type in ("qwen2_vl", "qwen2_5_vl"):
        types = {} if input_ids is None else {"mm_token_type_ids": (input_ids == model.config.image_token_id).int()}
        sizes = {"side": tower.patch_size, "merge": tower.spatial_merge_size, "frames": tower.temporal_patch_size}
        return {**in_patches(pixel_values, **sizes), **types}
    if model.config.model_type in ("idefics3", "smolvlm"):
        return {"pixel_values": in_tiles(pixel_values, tower.image_size)}
    if getattr(tower, "model_type", None) != "pixtral":
        return {"pixel_values": pixel_values}
    return {"pixel_values": pixel_values, "image_sizes": _alike(pixel_values.shape[2:], pixel_values)}


def in_tiles(pixel_values: Tensor, side: int) -> Tensor:
    """Returns the tiles [1, tiles, C, side, side] of images [n, C, H, W], as Idefics3's image processor cuts them."""
    import torch

    from vlm.layers.images.tiles import cut_tiles

    return torch.stack([tile for image in pixel_values for tile in cut_tiles(image, side)])[None]


def in_patches(pixel_values: Tensor, *, side: int, merge: int, frames: int) -> dict[str, Tensor]:
    """Returns images [n, C, H, W] as Qwen2-VL's image processor cuts them: square by square, for each frame."""
    count, channels, *size = pixel_values.shape
    down, across = (length // (side * merge) for length in size)
    x = pixel_values.view(count, channels, down, merge, side, across, merge, side).permute(0, 2, 5, 3, 6, 1, 4, 7)
    x = x.unsqueeze(6).expand(*x.shape[:6], frames, side, side)
    grid = _alike((1, down * merge, across * merge), pixel_values)
    return {"pixel_values": x.reshape(-1, channels * frames * side**2), "image_grid_thw": grid}


def _alike(numbers: Sequence[int], images: Tensor) -> Tensor:
    """Returns the same numbers for each of the images, [n, numbers] int64."""
    import torch

    return torch.tensor(numbers, device=images.device).expand(len(images), -1)


def flattened(pixel_values: Tensor, side: int) -> dict[str, Tensor]:
    """Returns images [n, C, H, W] as Pix2Struct's image processor cuts them: a patch's row and column from 1 on, then
    its values, pixel by pixel; without padding."""
    import torch

    count, channels, *size = pixel_values.shape
    down, across = (length // side for length in size)
    x = (
        pixel_values.view(count, channels, down, side, across, side)
        .permute(0, 2, 4, 3, 5, 1)
        .reshape(count, down * across, -1)
    )
    places = torch.cartesian_prod(torch.arange(down), torch.arange(across)) + 1
    patches = torch.cat((places.to(x).expand(count, -1, -1), x), dim=2)
    return {"flattened_patches": patches, "attention_mask": torch.ones_like(patches[..., 0])}
