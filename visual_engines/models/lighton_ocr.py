"""LightOnOCR's visual encoder: Pixtral's rows, squares of which are merged and projected (Taghadouini et al.,
arXiv:2601.14251; the projector is Mistral Small 3.1's)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visual_engines.models import pixtral
from visual_engines.models.pixtral import Pixtral, PixtralConfig
from vlm.convert.config_reader import ConfigReader
from vlm.convert.rules import Apply, Rename
from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.images.patches import PatchedVisionConfig
from vlm.layers.linear import Linear
from vlm.layers.norm import RmsNorm
from vlm.layers.quant.producer import Producer
from vlm.registry.spec import ModelSpec


@dataclass(frozen=True)
class LightOnVisionConfig(PatchedVisionConfig):
    tower: PixtralConfig
    text_width: int
    norm_eps: float = 1e-6
    image_token_id: int | None = None

    @property
    def hidden_size(self) -> int:
        return self.text_width

    @property
    def side_step(self) -> int:
        return self.patch_size

    @property
    def usual_size(self) -> tuple[int, int]:
        """That of an upright page of A4, as long as the model takes it."""
        square = self.patch_size * self.merge_size
        return self.image_size[0], max(square, round(self.image_size[0] / 2**0.5 / square) * square)


def parse(hf: dict[str, Any]) -> LightOnVisionConfig:
    """Reads a whole Hugging Face `lighton_ocr` configuration. Raises ConfigError that names every field it cannot
    honour."""
    fields, text = ConfigReader(hf, "LightOnOCR"), hf.get("text_config") or {}
    tower = pixtral.parse(hf.get("vision_config") or PUBLISHED_TOWER)
    config = LightOnVisionConfig(
        image_size=tower.image_size,
        num_channels=tower.num_channels,
        patch_size=tower.patch_size,
        merge_size=fields.size("spatial_merge_size", 2),
        tower=tower,
        text_width=text.get("hidden_size", 4096),
        norm_eps=text.get("rms_norm_eps", 1e-6),
        image_token_id=fields.token_id("image_token_id", 151655),
    )
    fields.check_patches(config.image_size, config.patch_size, config.merge_size)
    fields.raise_errors()
    return config


# LightOnOCR's own defaults of its tower
PUBLISHED_TOWER = {"image_size": 1540, "patch_size": 14, "hidden_act": "silu"}


class LightOnVision(nn.Module):
    """Turns patches of several images into rows of the language model's width."""

    def __init__(self, config: LightOnVisionConfig, context: ModelContext):
        super().__init__()
        self.config = config
        width, merged = config.tower.width, config.tower.width * config.merge_size**2
        self.tower = Pixtral(config.tower, context)
        self.norm = RmsNorm(width, config.norm_eps)
        self.merge = Linear(merged, width, bias=False, context=context)
        self.up = Linear(width, {"up": config.text_width}, bias=False, axis="column", context=context)
        self.down = Linear(config.text_width, config.text_width, bias=False, axis="row", context=context)
        self.producers = {"up": Producer("merge", "out")}

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the configuration and is not stored."""
        self.tower.init_buffers(device)

    def forward(self, patches: Tensor, squares: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps patches [R, channels · side²], squares [S · merge²]: of which each row is made -> [S, text_width]"""
        x = self.norm(*self.tower(patches, batch))[1]
        merged = self.merge(x[squares].view(-1, self.merge.in_features))
        return self.down(F.gelu(self.up(merged)))


def rules(config: LightOnVisionConfig) -> list[Any]:
    """Returns weight rules of `LightOnOcrForConditionalGeneration`'s visual part."""
    projector = "vision_projection."

    def by_patch(x: Tensor) -> Tensor:
        """Maps [C, C · patches] -> [C, patches · C]"""
        return x.view(len(x), -1, config.merge_size**2).transpose(1, 2).reshape(x.shape)

    reason = "a square's patches lie one after the other, not channel by channel"
    return [
        *pixtral.rules("vision_encoder."),
        Rename(f"{projector}norm.weight", "norm.weight"),
        Apply(f"{projector}patch_merger.merging_layer.weight", "merge.weight", by_patch, reason),
        Rename(f"{projector}linear_1.weight", "up.weight"),
        Rename(f"{projector}linear_2.weight", "down.weight"),
    ]


SPEC = ModelSpec("lighton-ocr-vision", LightOnVisionConfig, parse, LightOnVision, rules)
