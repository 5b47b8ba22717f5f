"""A tiny model of each family, and inputs of any of them."""

from __future__ import annotations

from typing import Any

import torch

from tests.kits.models import tiny
from vlm.api.pipeline import Pipeline
from vlm.config import VisionConfig
from vlm.layers.images.patches import PatchedVisionConfig
from vlm.layers.images.tiles import TiledVisionConfig

MODELS = {
    "nougat": lambda: tiny.nougat(seed=8),
    "trocr": lambda: tiny.trocr(seed=5),
    "pix2struct": lambda: tiny.pix2struct(seed=1),
    "t5": lambda: tiny.t5(seed=1, tied=False),
    "gated t5": lambda: tiny.t5(seed=1, feed_forward_proj="gated-gelu"),
    "t5gemma": lambda: tiny.t5gemma(),
    "t5gemma2": lambda: tiny.t5gemma2(),
    "umt5": lambda: tiny.t5(seed=1, kind="umt5"),
    "bart": lambda: tiny.bart(seed=5),
    "mbart": lambda: tiny.bart(seed=3, multilingual=True),
    "m2m100": lambda: tiny.m2m100(seed=5),
    "marian": lambda: tiny.marian(),
    "pegasus": lambda: tiny.pegasus(),
    "opt": lambda: tiny.opt(seed=2),
    "llama": lambda: tiny.llama(seed=3, num_key_value_heads=2),
    "qwen2": lambda: tiny.llama(seed=3, kind="qwen2", num_key_value_heads=2),
    "qwen3": lambda: tiny.llama(seed=5, kind="qwen3", head_dim=12, num_key_value_heads=2),
    "gpt2": lambda: tiny.gpt2(seed=1),
    "starcoder": lambda: tiny.gpt2(seed=1, multi_query=True),
    "llava": lambda: tiny.llava(seed=3),
    "florence2": lambda: tiny.florence2(),
    "lighton-ocr": lambda: tiny.lighton_ocr(seed=1),
    "idefics3": lambda: tiny.idefics3(seed=1),
    "qwen2-vl": lambda: tiny.qwen_vl(seed=1, second=False),
    "qwen2.5-vl": lambda: tiny.qwen_vl(seed=1),
    "blip2-opt": lambda: tiny.blip2("opt", seed=1),
    "blip2-t5": lambda: tiny.blip2("t5", seed=7, spread=0.4),
}


def image_size(vision: VisionConfig) -> tuple[int, int]:
    """Returns the (height, width) of an image for a test: of networks that read large ones a small one."""
    if isinstance(vision, TiledVisionConfig):
        return 3 * vision.tile_size, 2 * vision.tile_size
    if vision.max_rows <= 256 or not isinstance(vision, PatchedVisionConfig):
        return vision.image_size
    square = vision.patch_size * vision.merge_size
    return 3 * square, 5 * square


def inputs_of(pipe: Pipeline) -> list[dict[str, Any]]:
    """Returns two inputs of different lengths, an image in each where the model reads images."""
    generator = torch.Generator().manual_seed(0)
    inputs = []
    for length in (9, 4):
        given: dict = {pipe.capabilities.id_field: torch.randint(3, 58, (length,), generator=generator).tolist()}
        if (vision := pipe.processor.vision) is not None:
            pixels = torch.randn(vision.num_channels, *image_size(vision), generator=generator)
            given = {"pixel_values": pixels} | (given if pipe.capabilities.takes_prompt else {})
        if vision is not None and pipe.capabilities.takes_prompt:
            rows = range(pipe.config.vocab_size, pipe.config.vocab_size + vision.rows_of(*image_size(vision)))
            given[pipe.capabilities.id_field] = [*rows, *given[pipe.capabilities.id_field]]
        inputs.append(given)
    return inputs
