"""VILA's visual encoder: CLIP or SigLIP, and a projector that is linear, an MLP, or an MLP over 2 × 2 cells.

Lin et al., VILA (arXiv:2312.07533). Its configuration comes from its converter, under names of this module.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from visual_engines.models import vit
from visual_engines.models.vit import ViT, ViTConfig
from vlm.config import VisionConfig
from vlm.convert.rules import Rename
from vlm.errors import ConfigError, shown
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.quant.producer import Producer
from vlm.registry.spec import ModelSpec

DOWNSAMPLE = "mlp_downsample"
DEPTH = re.compile(r"mlp(\d+)x_gelu")
TOWERS = ("vision_tower.", "vision_tower.vision_model.")


@dataclass(frozen=True)
class VilaVisionConfig(VisionConfig):
    tower: ViTConfig
    text_width: int
    projector: str  # "linear", "mlp2x_gelu", …, "mlp_downsample"
    whole: bool  # with the class token's row

    @property
    def num_features(self) -> int:
        if self.projector != DOWNSAMPLE:
            return self.tower.num_features - (self.tower.class_token and not self.whole)
        rows, columns = self.tower.grid
        return -(-rows // 2) * -(-columns // 2)

    @property
    def hidden_size(self) -> int:
        return self.text_width

    @property
    def linears(self) -> int:
        """Counts the projector's Linear layers."""
        if self.projector == DOWNSAMPLE:
            return 2
        depth = DEPTH.fullmatch(self.projector)
        return int(depth[1]) if depth else 1  # "linear"


def parse(config: dict[str, Any]) -> VilaVisionConfig:
    """{"vision_tower": a Hugging Face tower's configuration, "mm_vision_select_layer", "mm_vision_select_feature",
    "mm_projector_type", "hidden_size": the language model's width} -> VilaVisionConfig; ConfigError for what is not
    done here."""
    errors = []
    layer = config.get("mm_vision_select_layer", -2)
    if not isinstance(layer, int):  # VILA itself joins no layers
        errors.append(f"mm_vision_select_layer is {shown(layer)}, it must be a whole number")
        layer = -1
    tower = vit.parse(config["vision_tower"], layer)
    projector, rows = config.get("mm_projector_type", "linear"), config.get("mm_vision_select_feature", "patch")
    if projector not in ("linear", DOWNSAMPLE) and not DEPTH.fullmatch(str(projector)):
        errors.append(
            f"mm_projector_type is {shown(projector)}, supported are linear, mlp2x_gelu (any depth), {DOWNSAMPLE}"
        )
    if rows not in ("patch", "cls_patch"):
        errors.append(f"mm_vision_select_feature is {shown(rows)}, supported are patch, cls_patch")
    whole = rows == "cls_patch"
    if tower.class_token and whole and projector == DOWNSAMPLE:
        errors.append(f"{DOWNSAMPLE} takes a square of patches, without the class token")
    if not tower.class_token and not whole:
        errors.append("mm_vision_select_feature is 'patch', but a SigLIP tower has no class token to leave out")
    if tower.grid[0] != tower.grid[1]:
        errors.append(f"the tower's grid {tower.grid} is no square")
    if errors:
        raise ConfigError(f"this VILA configuration cannot be run exactly: {'; '.join(errors)}.")
    return VilaVisionConfig(
        tower.image_size, tower.num_channels, tower, config["hidden_size"], projector, whole or not tower.class_token
    )


class VilaVision(nn.Module):
    """Turns pixels into rows of the language model's width."""

    def __init__(self, config: VilaVisionConfig, context: ModelContext):
        super().__init__()
        self.config, width = config, config.tower.hidden_size
        self.tower = ViT(config.tower, context)
        if config.projector == DOWNSAMPLE:
            width *= 4
            self.norm = nn.LayerNorm(width)
            self.producers = {"linears.0": Producer("norm")}
        sizes = [width] + [config.text_width] * config.linears
        self.linears = nn.ModuleList(Linear(a, b, context=context) for a, b in itertools.pairwise(sizes))

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Maps [n, channels, H, W] -> [n, num_features, text_width]"""
        x = self.tower(pixel_values)
        if not self.config.whole:
            x = x[:, 1:]
        if self.config.projector == DOWNSAMPLE:
            x = self.norm(cells(x, self.config.tower.grid[0]))
        for i, linear in enumerate(self.linears):
            x = linear(F.gelu(x) if i else x)
        return x


def cells(x: Tensor, side: int) -> Tensor:
    """Regroups a square's rows [n, side², C] into its 2 × 2 cells [n, ceil(side / 2)², 4 C], column by column; an odd
    side gets a border of zeros."""
    n, _, width = x.shape
    even = -(-side // 2) * 2
    x = F.pad(x.view(n, side, side, width), (0, 0, 0, even - side, 0, even - side))
    x = x.view(n, even // 2, 2, even // 2, 2, width)
    return x.permute(0, 3, 1, 2, 4, 5).reshape(n, (even // 2) ** 2, 4 * width)


def rules(config: VilaVisionConfig) -> list[Any]:
    """Returns weight rules, names beginning with `vision_tower.` and `mm_projector.layers`."""
    weight_rules = [rule for prefix in TOWERS for rule in vit.rules(config.tower, prefix)]
    down = config.projector == DOWNSAMPLE
    names = {"mm_projector.layers.1": "norm"} if down else {}
    for i in range(config.linears):
        # a sequence holds the activations too, and the regrouping and norm before
        place = "" if config.projector == "linear" else f".{2 * i + (2 if down else 0)}"
        names[f"mm_projector.layers{place}"] = f"linears.{i}"
    return weight_rules + [
        Rename(f"{a}.{kind}", f"{b}.{kind}") for a, b in names.items() for kind in ("weight", "bias")
    ]


SPEC = ModelSpec("vila-vision", VilaVisionConfig, parse, VilaVision, rules)
