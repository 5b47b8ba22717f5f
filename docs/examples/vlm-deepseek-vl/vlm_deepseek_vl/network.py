"""DeepSeek-VL's visual encoder (Lu et al., arXiv:2403.05525): SigLIP's last rows, aligned by two layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from visual_engines.models import vit
from visual_engines.models.vit import ViT, ViTConfig
from vlm.config import VisionConfig
from vlm.convert.rules import Rename
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.registry.spec import ModelSpec

TOWERS = ("vision_model.", "vision_model.vision_model.")  # in releases of transformers


@dataclass(frozen=True)
class DeepSeekVisionConfig(VisionConfig):
    tower: ViTConfig
    text_width: int
    image_token_id: int | None = None

    @property
    def num_features(self) -> int:
        return self.tower.num_features

    @property
    def hidden_size(self) -> int:
        return self.text_width


def parse(hf: dict[str, Any]) -> DeepSeekVisionConfig:
    """Reads a whole Hugging Face `deepseek_vl`; ConfigError names every key of the tower that it cannot honour."""
    tower = vit.parse(hf.get("vision_config") or {}, kind="siglip_vision_model")
    width = (hf.get("text_config") or {}).get("hidden_size", 4096)
    return DeepSeekVisionConfig(tower.image_size, tower.num_channels, tower, width, hf.get("image_token_id", 100015))


class DeepSeekVision(nn.Module):
    """Turns pixels into rows of the language model's width."""

    def __init__(self, config: DeepSeekVisionConfig, context: ModelContext):
        super().__init__()
        self.config = config
        self.tower, width = ViT(config.tower, context), config.text_width
        self.up = Linear(config.tower.hidden_size, {"up": width}, axis="column", context=context)
        self.down = Linear(width, width, axis="row", context=context)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Maps [n, channels, H, W] -> [n, num_features, text_width]"""
        return self.down(F.gelu(self.up(self.tower(pixel_values))))


def rules(config: DeepSeekVisionConfig) -> list[Any]:
    """Returns weight rules of `DeepseekVLForConditionalGeneration`'s visual part."""
    names = {f"aligner.linear1.{kind}": f"up.{kind}" for kind in ("weight", "bias")}
    names |= {f"aligner.linear2.{kind}": f"down.{kind}" for kind in ("weight", "bias")}
    tower = [rule for prefix in TOWERS for rule in vit.rules(config.tower, prefix)]
    return tower + [Rename(theirs, ours) for theirs, ours in names.items()]


SPEC = ModelSpec("deepseek-vl-vision", DeepSeekVisionConfig, parse, DeepSeekVision, rules)
