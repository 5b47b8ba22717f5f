"""T5Gemma 2's visual encoder, which is Gemma 3's (arXiv:2503.19786): a SigLIP tower, whose rows are averaged over
squares, normed and projected to the language model's width."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from visual_engines.models import vit
from visual_engines.models.vit import ViT, ViTConfig
from vlm.config import VisionConfig
from vlm.convert.config_reader import ConfigReader
from vlm.convert.rules import Apply, Transpose
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.norm import RmsNorm
from vlm.layers.quant.producer import Producer
from vlm.registry.spec import ModelSpec

TOWERS = ("vision_tower.", "vision_tower.vision_model.")
PROJECTOR = "multi_modal_projector."


@dataclass(frozen=True)
class T5Gemma2VisionConfig(VisionConfig):
    tower: ViTConfig
    text_width: int
    side: int  # rows of features down and across
    image_token_id: int | None = None

    @property
    def num_features(self) -> int:
        return self.side**2

    @property
    def hidden_size(self) -> int:
        return self.text_width


def parse(hf: dict[str, Any]) -> T5Gemma2VisionConfig:
    """Reads a whole Hugging Face `t5gemma2` configuration. Raises ConfigError that names every field it cannot
    honour."""
    encoder = hf.get("encoder") or {}
    fields = ConfigReader(encoder, "T5Gemma 2 encoder")
    whole = ConfigReader(hf, "T5Gemma 2", aliases={"image_token_id": "image_token_index"})
    tower = vit.parse(encoder.get("vision_config") or {}, kind="siglip_vision_model")
    rows = fields.size("mm_tokens_per_image", 256)
    side = math.isqrt(rows)
    if side**2 != rows or tower.grid[0] != tower.grid[1] or tower.grid[0] // max(tower.grid[0] // side, 1) != side:
        fields.errors.append(f"mm_tokens_per_image is {rows}, which no squares of {tower.grid} patches make")
    image_token_id = whole.token_id("image_token_index", 256001)
    fields.errors += whole.errors
    fields.raise_errors()
    return T5Gemma2VisionConfig(
        image_size=tower.image_size,
        num_channels=tower.num_channels,
        tower=tower,
        text_width=ConfigReader(encoder.get("text_config") or {}, "T5Gemma 2 encoder").size("hidden_size", 2304),
        side=side,
        image_token_id=image_token_id,
    )


class T5Gemma2Vision(nn.Module):
    """Turns pixels into rows of the language model's width."""

    def __init__(self, config: T5Gemma2VisionConfig, context: ModelContext):
        super().__init__()
        self.config = config
        self.tower = ViT(config.tower, context)
        self.norm = RmsNorm(config.tower.hidden_size, config.tower.norm_eps)
        self.projection = Linear(config.tower.hidden_size, config.text_width, bias=False, context=context)
        self.producers = {"projection": Producer("norm")}

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Maps [n, channels, H, W] -> [n, num_features, text_width]"""
        rows = self.tower(pixel_values).mT.unflatten(2, self.config.tower.grid)
        pooled = F.avg_pool2d(rows, self.config.tower.grid[0] // self.config.side).flatten(2).mT
        return self.projection(self.norm(pooled.contiguous())[1])


def rules(config: T5Gemma2VisionConfig) -> list[Any]:
    """Returns weight rules of the visual part of `T5Gemma2ForConditionalGeneration`."""
    return [
        *(rule for prefix in TOWERS for rule in vit.rules(config.tower, prefix)),
        Apply(
            f"{PROJECTOR}mm_soft_emb_norm.weight", "norm.weight", lambda x: x.float() + 1, "saved as distances from 1"
        ),
        Transpose(f"{PROJECTOR}mm_input_projection_weight", "projection.weight"),
    ]


SPEC = ModelSpec("t5gemma2-vision", T5Gemma2VisionConfig, parse, T5Gemma2Vision, rules)
