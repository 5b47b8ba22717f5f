"""LLaVA-1.5's visual encoder: a tower's features through a projector of two layers (Liu et al., arXiv:2310.03744)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from visual_engines.layers import ACTIVATIONS, activation_of
from visual_engines.models import vit
from visual_engines.models.vit import ViT, ViTConfig
from vlm.config import VisionConfig
from vlm.convert.config_reader import ConfigReader
from vlm.convert.rules import Rename
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.quant.producer import Producer
from vlm.registry.spec import ModelSpec

# LLaVA's own defaults of its tower: CLIP ViT-L/14 at 336 pixels
TOWER = {"intermediate_size": 4096, "hidden_size": 1024, "patch_size": 14, "image_size": 336, "num_hidden_layers": 24,
         "num_attention_heads": 16}  # fmt: skip
TOWERS = ("vision_tower.", "vision_tower.vision_model.")


@dataclass(frozen=True)
class LlavaVisionConfig(VisionConfig):
    tower: ViTConfig
    text_width: int
    activation: str = "gelu"
    bias: bool = True
    whole: bool = False  # with the first row, which is a class token's
    image_token_id: int | None = None

    @property
    def num_features(self) -> int:
        return self.tower.num_features - (not self.whole)

    @property
    def hidden_size(self) -> int:
        return self.text_width


def parse(hf: dict[str, Any]) -> LlavaVisionConfig:
    """Reads a whole Hugging Face `llava` configuration. Raises ConfigError that names every field it cannot
    honour."""
    fields = ConfigReader(hf, "LLaVA", aliases={"image_token_id": "image_token_index"})
    tower = vit.parse(hf.get("vision_config") or TOWER, fields.get("vision_feature_layer", -2))
    strategy = fields.choice("vision_feature_select_strategy", ["default", "full"], default="default")
    config = LlavaVisionConfig(
        image_size=tower.image_size,
        num_channels=tower.num_channels,
        tower=tower,
        text_width=(hf.get("text_config") or {}).get("hidden_size", 4096),
        activation=fields.choice("projector_hidden_act", ACTIVATIONS, default="gelu"),
        bias=bool(fields.get("multimodal_projector_bias", True)),
        whole=strategy == "full",
        image_token_id=fields.token_id("image_token_index", 32000),
    )
    fields.raise_errors()
    return config


class LlavaVision(nn.Module):
    """Turns pixels into rows of the language model's width."""

    def __init__(self, config: LlavaVisionConfig, context: ModelContext):
        super().__init__()
        self.config = config
        self.tower, width = ViT(config.tower, context), config.text_width
        self.up = Linear(config.tower.hidden_size, {"up": width}, bias=config.bias, axis="column", context=context)
        self.activation = activation_of(config.activation)
        self.down = Linear(width, width, bias=config.bias, axis="row", context=context)
        self.producers = {"down": Producer("up", "up")} if config.activation == "relu" else {}

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Maps [n, channels, H, W] -> [n, num_features, text_width]"""
        features = self.tower(pixel_values)
        features = features if self.config.whole else features[:, 1:]
        return self.down(self.up(features, activation=self.activation))


def rules(config: LlavaVisionConfig) -> list[Any]:
    """Returns weight rules of `LlavaForConditionalGeneration`'s visual part, under the names of its releases."""
    weight_rules = [rule for prefix in TOWERS for rule in vit.rules(config.tower, prefix)]
    for theirs, ours in (("linear_1", "up"), ("linear_2", "down")):
        for kind in ("weight", "bias") if config.bias else ("weight",):
            weight_rules.append(Rename(f"multi_modal_projector.{theirs}.{kind}", f"{ours}.{kind}"))
    return weight_rules


SPEC = ModelSpec("llava-vision", LlavaVisionConfig, parse, LlavaVision, rules)
