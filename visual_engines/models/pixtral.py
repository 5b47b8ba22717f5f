"""Pixtral's vision transformer (Agrawal et al., arXiv:2410.07073).

Images of any size, their patches' rows and columns as rotary positions, attention within each image of a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from visual_engines.layers import GridRotary, grid_theta
from vlm.config import Config
from vlm.convert.config_reader import ConfigReader
from vlm.convert.rules import Apply, Fuse, Rename
from vlm.layers.attention import EncoderAttention
from vlm.layers.context import ModelContext
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.linear import Linear
from vlm.layers.norm import RmsNorm
from vlm.layers.quant.producer import Producer

NORM_EPS = 1e-5  # that of its class, whatever a configuration says


@dataclass(frozen=True)
class PixtralConfig(Config):
    image_size: tuple[int, int]
    num_channels: int
    patch_size: int
    width: int
    ffn_size: int
    num_layers: int
    num_heads: int
    activation: str
    theta: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads


def parse(hf: dict[str, Any]) -> PixtralConfig:
    """Reads a Hugging Face `pixtral` configuration. Raises ConfigError that names every field it cannot honour."""
    fields = ConfigReader(hf, "Pixtral tower")
    fields.choice("model_type", ["pixtral"], default="pixtral")
    width, heads = fields.size("hidden_size", 1024), fields.size("num_attention_heads", 16)
    fields.choice("head_dim", [width // heads, None], default=None)
    fields.multiple("hidden_size", width, "4 · num_attention_heads", 4 * heads)
    config = PixtralConfig(
        image_size=fields.sides("image_size", 1024),
        num_channels=fields.size("num_channels", 3),
        patch_size=fields.sides("patch_size", 16)[0],
        width=width,
        ffn_size=fields.size("intermediate_size", 4096),
        num_layers=fields.size("num_hidden_layers", 24),
        num_heads=heads,
        activation=fields.activation("hidden_act", "gelu"),
        theta=grid_theta(fields),
    )
    fields.check_patches(config.image_size, config.patch_size)
    fields.raise_errors()
    return config


class Block(nn.Module):
    def __init__(self, config: PixtralConfig, context: ModelContext):
        super().__init__()
        self.attention_norm, self.ffn_norm = RmsNorm(config.width, NORM_EPS), RmsNorm(config.width, NORM_EPS)
        self.attention = EncoderAttention(config.width, config.num_heads, bias=False, context=context)
        self.ffn = FeedForward(
            config.width, config.ffn_size, config.activation, gated=True, bias=False, context=context
        )
        self.producers = {"attention.qkv": Producer("attention_norm"), "ffn.up": Producer("ffn_norm")}

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the residual stream [R, C] and the last sublayer's output, which the next norm adds."""
        x, y = self.attention_norm(x, delta)
        x, y = self.ffn_norm(x, self.attention(y, batch, angles=angles))
        return x, self.ffn(y, batch)


class Pixtral(nn.Module):
    """Turns patches into rows."""

    def __init__(self, config: PixtralConfig, context: ModelContext):
        super().__init__()
        values = config.num_channels * config.patch_size**2
        self.patch_embed = Linear(values, config.width, bias=False, context=context)
        self.embedding_norm = RmsNorm(config.width, NORM_EPS)
        self.rotary = GridRotary(config.head_dim, config.theta)
        self.blocks = nn.ModuleList(Block(config, context) for _ in range(config.num_layers))

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the configuration and is not stored."""
        self.rotary.init_buffers(device)

    def forward(self, patches: Tensor, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        """Maps patches [R, channels · side²] -> the residual stream [R, C] and what is still to be added to it"""
        (_, x), delta = self.embedding_norm(self.patch_embed(patches)), None
        angles = self.rotary(batch.positions)
        for block in self.blocks:
            x, delta = block(x, delta, batch, angles)
        return x, delta


def rules(prefix: str, to: str = "tower.") -> list[Any]:
    """Returns weight rules of `PixtralVisionModel`, named `prefix`…"""
    theirs, ours = f"{prefix}transformer.layers.{{}}.", f"{to}blocks.{{}}."
    flat = "patches are rows of their values, which the convolution's weights meet in the same order"
    return [
        Apply(f"{prefix}patch_conv.weight", f"{to}patch_embed.weight", lambda x: x.flatten(1), flat),
        Rename(f"{prefix}ln_pre.weight", f"{to}embedding_norm.weight"),
        Rename(f"{theirs}attention_norm.weight", f"{ours}attention_norm.weight"),
        Rename(f"{theirs}ffn_norm.weight", f"{ours}ffn_norm.weight"),
        Fuse(f"{theirs}attention.{{q,k,v}}_proj.weight", f"{ours}attention.qkv.weight"),
        Rename(f"{theirs}attention.o_proj.weight", f"{ours}attention.out.weight"),
        Fuse(f"{theirs}feed_forward.{{gate,up}}_proj.weight", f"{ours}ffn.up.weight"),
        Rename(f"{theirs}feed_forward.down_proj.weight", f"{ours}ffn.down.weight"),
    ]
