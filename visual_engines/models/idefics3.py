"""The visual encoder of Idefics3, SmolVLM and Granite-Docling: SigLIP over tiles of an image, whose rows are gathered
by pixel shuffle and projected (Laurençon et al., arXiv:2408.12637; SmolVLM: Marafioti et al., arXiv:2504.05299)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from visual_engines.models import vit
from visual_engines.models.vit import ViT, ViTConfig
from vlm.convert.config_reader import ConfigReader
from vlm.convert.rules import Apply, Rename
from vlm.layers.context import ModelContext
from vlm.layers.images.tiles import TiledVisionConfig, largest_size
from vlm.layers.linear import Linear
from vlm.registry.spec import ModelSpec

# Idefics3's own defaults of its tower
TOWER = {"hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
         "image_size": 224, "patch_size": 32}  # fmt: skip
POSITIONS = "vision_model.embeddings.position_embedding.weight"


@dataclass(frozen=True)
class Idefics3VisionConfig(TiledVisionConfig):
    tower: ViTConfig
    scale_factor: int
    text_width: int
    image_token_id: int | None = None

    @property
    def tile_rows(self) -> int:
        return self.tower.num_features // self.scale_factor**2

    @property
    def hidden_size(self) -> int:
        return self.text_width


def parse(hf: dict[str, Any]) -> Idefics3VisionConfig:
    """Reads a whole Hugging Face `idefics3` or `smolvlm` configuration. Raises ConfigError that names every field it
    cannot honour."""
    fields, text = ConfigReader(hf, "Idefics3"), hf.get("text_config") or {}
    own = TOWER | (hf.get("vision_config") or {}) | {"model_type": "siglip_vision_model"}  # the class reads no other
    tower = vit.parse(own)
    rows, columns = tower.grid
    scale = fields.size("scale_factor", 2)
    if rows != columns or not rows or rows % scale:
        fields.errors.append(
            f"tiles have {rows} × {columns} patches, of which squares of scale_factor {scale} to a side leave some over"
        )
    image_token_id = fields.token_id("image_token_id", 128257)
    fields.raise_errors()
    side = tower.image_size[0]
    return Idefics3VisionConfig(
        image_size=largest_size(side),
        num_channels=tower.num_channels,
        tile_size=side,
        tower=tower,
        scale_factor=scale,
        text_width=text.get("hidden_size", 4096),
        image_token_id=image_token_id,
    )


class Idefics3Vision(nn.Module):
    """Turns tiles into rows of the language model's width."""

    def __init__(self, config: Idefics3VisionConfig, context: ModelContext):
        super().__init__()
        self.config = config
        self.tower = ViT(config.tower, context)
        width = config.tower.hidden_size * config.scale_factor**2
        self.connector = Linear(width, config.text_width, bias=False, context=context)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Maps [n, channels, side, side] -> [n, tile_rows, text_width]"""
        return self.connector(shuffled(self.tower(pixel_values), self.config.tower.grid[0], self.config.scale_factor))


def shuffled(x: Tensor, side: int, scale: int) -> Tensor:
    """Joins the rows of each square of `scale` to a side: [n, side², C] -> [n, (side / scale)², scale² · C]"""
    count, _, width = x.shape
    x = x.view(count, side // scale, scale, side // scale, scale, width).transpose(2, 3)
    return x.reshape(count, (side // scale) ** 2, scale**2 * width)


def patch_positions(side: int) -> Tensor:
    """Returns which row of the table each of side² patches takes, row by row.

    The class finds it by where the patch lies as a part of the tile, in numbers that are rounded: of 25 patches to a
    side two neighbours share one.
    """
    bounds = torch.arange(1 / side, 1.0, 1 / side)
    places = (torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))).clamp(max=1.0 - 1e-6)
    at = torch.bucketize(places, bounds, right=True)
    return (at[:, None] * side + at).flatten()


def rules(config: Idefics3VisionConfig) -> list[Any]:
    """Returns weight rules of `Idefics3ForConditionalGeneration`'s and `SmolVLMForConditionalGeneration`'s visual
    part."""
    places, reason = patch_positions(config.tower.grid[0]), "rows by the patches that take them"
    others = [rule for rule in vit.rules(config.tower, "vision_model.") if getattr(rule, "source", "") != POSITIONS]
    return [
        Apply(POSITIONS, "tower.positions", lambda x: x[places], reason),
        *others,
        Rename("connector.modality_projection.proj.weight", "connector.weight"),
    ]


SPEC = ModelSpec("idefics3-vision", Idefics3VisionConfig, parse, Idefics3Vision, rules)
