"""Florence-2's visual encoder (Xiao et al., arXiv:2311.06242): a DaViT (Ding et al., arXiv:2204.03645) and a projection
to the language model's width.

Each layer of a DaViT attends twice: from cell to cell within windows, then from channel to channel, of which a group's
are compared over all cells. Before each sublayer every channel is convolved with its neighbours'.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visual_engines.layers import Mlp, window_partition, window_reverse
from visual_engines.models.florence2_config import FlorenceVisionConfig, parse
from vlm.convert.rules import Apply, Rename, Transpose
from vlm.layers.context import ModelContext
from vlm.layers.images.convolution import Conv2d
from vlm.layers.linear import Linear
from vlm.layers.norm import LayerNorm
from vlm.layers.quant.producer import Producer
from vlm.registry.spec import ModelSpec


class PatchEmbed(nn.Module):
    """Turns squares of cells, which overlap, into cells of the next stage."""

    def __init__(self, config: FlorenceVisionConfig, stage: int):
        super().__init__()
        width, before = config.embed_dim[stage], (config.num_channels, *config.embed_dim)[stage]
        self.norm_first = config.patch_prenorm[stage]
        side, stride, padding = (x[stage] for x in (config.patch_size, config.patch_stride, config.patch_padding))
        self.proj = Conv2d(before, width, side, stride, padding)
        self.norm = LayerNorm(before if self.norm_first else width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [n, rows, columns, C] -> the next stage's"""
        x = self.norm(x)[1] if self.norm_first else x
        x = self.proj(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return x if self.norm_first else self.norm(x)[1]


class WindowAttention(nn.Module):
    """Attends inside windows. Cells that fill the last ones up are zeros, and seen."""

    def __init__(self, config: FlorenceVisionConfig, stage: int, context: ModelContext):
        super().__init__()
        width, self.num_heads, self.window = config.embed_dim[stage], config.num_heads[stage], config.window_size
        parts = {"q": width, "k": width, "v": width}
        self.qkv = Linear(width, parts, bias=config.qkv_bias, context=context)
        self.proj = Linear(width, width, context=context)
        self.producers = {"proj": Producer("qkv", "v")}

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [n, rows, columns, C] -> the same"""
        rows, columns, width = x.shape[1:]
        down, right = -rows % self.window, -columns % self.window
        if down or right:
            x = F.pad(x, (0, 0, 0, right, 0, down))
        x = window_partition(x, self.window).flatten(1, 2)
        qkv = self.qkv(x).view(*x.shape[:2], 3, self.num_heads, -1)
        y = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind(0)).transpose(1, 2)
        y = self.proj(y.reshape(x.shape)).view(-1, self.window, self.window, width)
        return window_reverse(y, rows + down, columns + right)[:, :rows, :columns]


class ChannelAttention(nn.Module):
    """Attends from each channel to those of its group: by what they have in all cells."""

    def __init__(self, config: FlorenceVisionConfig, stage: int, context: ModelContext):
        super().__init__()
        width, self.num_groups = config.embed_dim[stage], config.num_groups[stage]
        parts = {"q": width, "k": width, "v": width}
        self.qkv = Linear(width, parts, bias=config.qkv_bias, context=context)
        self.proj = Linear(width, width, context=context)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [n, rows, columns, C] -> the same"""
        cells = x.flatten(1, 2)
        qkv = self.qkv(cells).view(*cells.shape[:2], 3, self.num_groups, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # [n, groups, cells, channels of a group]
        # scaled before the sum over thousands of cells, which half precision could not hold
        weights = ((q * cells.shape[1] ** -0.5).transpose(2, 3) @ k).softmax(-1)
        return self.proj((v @ weights.transpose(2, 3)).transpose(1, 2).reshape(x.shape))


class HalfBlock(nn.Module):
    """Attends in one of the two ways, then maps each cell by itself; channels are convolved before both."""

    def __init__(self, config: FlorenceVisionConfig, stage: int, attention: nn.Module, context: ModelContext):
        super().__init__()
        width = config.embed_dim[stage]
        self.conv1, self.conv2 = (Conv2d(width, width, 3, padding=1, groups=width) for _ in range(2))
        self.norm1, self.norm2 = LayerNorm(width), LayerNorm(width)
        self.attention = attention
        self.mlp = Mlp(width, int(width * config.mlp_ratio), config.activation, context=context)
        self.producers = {"attention.qkv": Producer("norm1"), "mlp.fc1": Producer("norm2")}

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [n, rows, columns, C] -> the same"""
        x, y = self.norm1(x, _convolved(self.conv1, x))
        x = x + self.attention(y)
        x, y = self.norm2(x, _convolved(self.conv2, x))
        return x + self.mlp(y)


def _convolved(conv: Conv2d, x: Tensor) -> Tensor:
    return conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1).contiguous()


class Block(nn.Module):
    def __init__(self, config: FlorenceVisionConfig, stage: int, context: ModelContext):
        super().__init__()
        self.spatial = HalfBlock(config, stage, WindowAttention(config, stage, context), context)
        self.channel = HalfBlock(config, stage, ChannelAttention(config, stage, context), context)

    def forward(self, x: Tensor) -> Tensor:
        return self.channel(self.spatial(x))


class Stage(nn.Module):
    def __init__(self, config: FlorenceVisionConfig, stage: int, context: ModelContext):
        super().__init__()
        self.embed = PatchEmbed(config, stage)
        self.blocks = nn.Sequential(*(Block(config, stage, context) for _ in range(config.depths[stage])))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.embed(x))


class FlorenceVision(nn.Module):
    """Turns pixels into rows of the language model's width: the mean of all cells, then a row a cell."""

    def __init__(self, config: FlorenceVisionConfig, context: ModelContext):
        super().__init__()
        self.config = config
        width = config.embed_dim[-1]
        self.stages = nn.Sequential(*(Stage(config, i, context) for i in range(len(config.depths))))
        self.row_positions = nn.Parameter(torch.zeros(config.max_positions, width // 2))
        self.column_positions = nn.Parameter(torch.zeros(config.max_positions, width - width // 2))
        self.frame_position = nn.Parameter(torch.zeros(width))  # of a picture, which is a video's first
        self.projection = Linear(width, config.projection_dim, bias=False, context=context)
        self.norm = LayerNorm(config.projection_dim)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Maps pixel_values [n, channels, H, W] -> [n, num_features, projection_dim]"""
        x = self.stages(pixel_values.permute(0, 2, 3, 1))
        rows, columns = x.shape[1:3]
        places = (self.column_positions[None, :columns].expand(rows, -1, -1),
                  self.row_positions[:rows, None].expand(-1, columns, -1))  # fmt: skip
        x = (x + torch.cat(places, -1) + self.frame_position).flatten(1, 2)
        return self.norm(self.projection(torch.cat((x.mean(1, keepdim=True), x), 1)))[1]


# sublayers of half a block here -> in transformers' class and in Microsoft's code; {} stands for the attention's name
NAMES = {
    "conv1": ("conv1", "conv1.fn.dw"),
    "norm1": ("norm1", "{}.norm"),
    "attention.qkv": ("{}.qkv", "{}.fn.qkv"),
    "attention.proj": ("{}.proj", "{}.fn.proj"),
    "conv2": ("conv2", "conv2.fn.dw"),
    "norm2": ("norm2", "ffn.norm"),
    "mlp.fc1": ("ffn.fc1", "ffn.fn.net.fc1"),
    "mlp.fc2": ("ffn.fc2", "ffn.fn.net.fc2"),
}
PROJECTOR = "multi_modal_projector."


def rules(config: FlorenceVisionConfig) -> list[Any]:
    """Returns weight rules of `Florence2ForConditionalGeneration`'s visual part, transformers' and Microsoft's."""
    names = [(f"vision_tower.convs.{{}}.{theirs}", f"stages.{{}}.embed.{ours}")
             for theirs, ours in (("conv", "proj"), ("proj", "proj"), ("norm", "norm"))]  # fmt: skip
    for half, attention in (("spatial", "window_attn"), ("channel", "channel_attn")):
        block, own = f"vision_tower.blocks.{{}}.{{}}.{half}_block", f"stages.{{}}.blocks.{{}}.{half}"
        names += [
            (f"{block}.{name.replace('{}', attention)}", f"{own}.{ours}") for ours, both in NAMES.items()
            for name in dict.fromkeys(both)
        ]  # fmt: skip
    names += [("image_proj_norm", "norm"), (f"{PROJECTOR}image_proj_norm", "norm")]
    pairs = [(f"{a}.{kind}", f"{b}.{kind}") for a, b in names for kind in ("weight", "bias")]
    return [
        *(Rename(theirs, ours, optional=True) for theirs, ours in pairs),
        Transpose("image_projection", "projection.weight", optional=True),
        Rename(f"{PROJECTOR}image_projection.weight", "projection.weight", optional=True),
        *_position_rules("image_pos_embed", "visual_temporal_embed"),
        *_position_rules(f"{PROJECTOR}image_position_embed", f"{PROJECTOR}visual_temporal_embed"),
    ]


def _position_rules(place: str, time: str) -> list[Any]:
    first = Apply(f"{time}.pos_idx_to_embed", "frame_position", lambda x: x[0], "of the first frame", optional=True)
    return [
        Rename(f"{place}.row_embeddings.weight", "row_positions", optional=True),
        Rename(f"{place}.column_embeddings.weight", "column_positions", optional=True),
        first,
    ]


SPEC = ModelSpec("florence2-vision", FlorenceVisionConfig, parse, FlorenceVision, rules)
