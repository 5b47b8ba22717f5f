"""Pix2Struct's image encoder (Lee et al., arXiv:2210.03347), which DePlot and MatCha have, too.

Patches of an image that keeps its shape, each with an embedding of its row and of its column, through blocks as T5's:
RMS norms, attention scores unscaled, a gated feed-forward, a residual stream of float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vlm.convert.config_reader import ConfigReader
from vlm.convert.rules import Apply, Fuse, Rename
from vlm.layers.attention import EncoderAttention
from vlm.layers.context import ModelContext
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.images.patches import PatchedVisionConfig
from vlm.layers.linear import Linear
from vlm.layers.norm import RmsNorm
from vlm.layers.quant.producer import Producer
from vlm.registry.spec import ModelSpec

CHANNELS = 3  # of a patch's values, which its configuration gives as one number


@dataclass(frozen=True)
class Pix2StructVisionConfig(PatchedVisionConfig):
    """Holds the sizes of the encoder; an image has any number of rows and columns of patches that are few enough."""

    max_patches: int  # of an image, and as many rows or columns as there are embeddings of them
    width: int
    d_kv: int
    ffn_size: int
    num_layers: int
    num_heads: int
    activation: str
    norm_eps: float = 1e-6

    @property
    def hidden_size(self) -> int:
        return self.width

    @property
    def max_rows(self) -> int:
        return self.max_patches

    @property
    def usual_size(self) -> tuple[int, int]:
        """That of a picture of 3 : 4 with half the patches: the published processors make 2,048 of 4,096."""
        rows = math.isqrt(self.max_patches * 3 // 8) or 1
        return rows * self.patch_size, max(1, self.max_patches // 2 // rows) * self.patch_size

    @property
    def shapes(self) -> str:
        return (
            f"({self.num_channels}, height, width), multiples of {self.patch_size}, {self.max_patches:,} patches of"
            f" {self.patch_size} × {self.patch_size} at most"
        )

    def takes(self, height: int, width: int) -> bool:
        rows, columns = self.patches_of(height, width)
        whole = height % self.patch_size == 0 == width % self.patch_size
        # the first of the embeddings is that of padding
        return whole and 0 < rows * columns <= self.max_patches and max(rows, columns) < self.max_patches


def parse(hf: dict[str, Any]) -> Pix2StructVisionConfig:
    """Reads the `vision_config` of a Hugging Face `pix2struct`. Raises ConfigError that names every field it cannot
    honour."""
    reader = ConfigReader(hf, "Pix2Struct encoder")
    patches, values = reader.size("seq_len", 4096), reader.size("patch_embed_hidden_size", 768)
    side = math.isqrt(values // CHANNELS)
    if CHANNELS * side * side != values:
        reader.errors.append(f"patch_embed_hidden_size is {values}, it must be {CHANNELS} · side²")
    config = {
        "image_size": (math.isqrt(patches) * side,) * 2,
        "num_channels": CHANNELS,
        "patch_size": side,
        "merge_size": 1,
        "max_patches": patches,
        "width": reader.size("hidden_size", 768),
        "d_kv": reader.size("d_kv", 64),
        "ffn_size": reader.size("d_ff", 2048),
        "num_layers": reader.size("num_hidden_layers", 12),
        "num_heads": reader.size("num_attention_heads", 12),
        "activation": reader.activation("dense_act_fn", "gelu_new"),
        "norm_eps": reader.get("layer_norm_eps", 1e-6),
    }
    reader.raise_errors()
    return Pix2StructVisionConfig(**config)


class Block(nn.Module):
    def __init__(self, config: Pix2StructVisionConfig, context: ModelContext):
        super().__init__()
        self.attention_norm, self.ffn_norm = _norm(config), _norm(config)
        self.attention = EncoderAttention(
            config.width, config.num_heads, head_dim=config.d_kv, bias=False, scale=1.0, context=context
        )
        self.ffn = FeedForward(
            config.width, config.ffn_size, config.activation, gated=True, bias=False, out_fp32=True, context=context
        )
        self.producers = {"attention.qkv": Producer("attention_norm"), "ffn.up": Producer("ffn_norm")}

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor]:
        """Returns the residual stream [R, C] and the last sublayer's output, which the next norm adds."""
        x, y = self.attention_norm(x, delta)
        x, y = self.ffn_norm(x, self.attention(y, batch))
        return x, self.ffn(y, batch)


def _norm(config: Pix2StructVisionConfig) -> RmsNorm:
    return RmsNorm(config.width, config.norm_eps)


class Pix2StructVision(nn.Module):
    """Turns patches of several images into rows that a decoder attends to, one each."""

    def __init__(self, config: Pix2StructVisionConfig, context: ModelContext):
        super().__init__()
        self.config = config
        self.patch_embed = Linear(config.num_channels * config.patch_size**2, config.width, context=context)
        self.rows = nn.Embedding(config.max_patches - 1, config.width)
        self.columns = nn.Embedding(config.max_patches - 1, config.width)
        self.blocks = nn.ModuleList(Block(config, context) for _ in range(config.num_layers))
        self.norm = _norm(config)

    def forward(self, patches: Tensor, squares: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps patches [R, channels · side²], squares [R], each patch's own number: none are merged -> [R, width]"""
        rows, columns = batch.positions
        x = self.patch_embed(patches).float() + self.rows(rows) + self.columns(columns)
        delta = None
        for block in self.blocks:
            x, delta = block(x, delta, batch)
        return self.norm(x, delta)[1]


def rules(config: Pix2StructVisionConfig) -> list[Any]:
    """Returns weight rules of `Pix2StructVisionModel`."""

    def by_channel(x: Tensor) -> Tensor:
        """Maps [C, side · side · channels] -> [C, channels · side · side]"""
        side, channels = config.patch_size, config.num_channels
        return x.view(-1, side, side, channels).permute(0, 3, 1, 2).reshape(x.shape)

    def unpadded(x: Tensor) -> Tensor:
        return x[1:].clone()

    reason = "a patch's values lie channel by channel, not pixel by pixel"
    first = "rows and columns are counted from 1 there: 0 is that of padding"
    theirs, ours = "encoder.layer.{}.", "blocks.{}."
    return [
        Apply("embeddings.patch_projection.weight", "patch_embed.weight", by_channel, reason),
        Rename("embeddings.patch_projection.bias", "patch_embed.bias"),
        Apply("embeddings.row_embedder.weight", "rows.weight", unpadded, first),
        Apply("embeddings.column_embedder.weight", "columns.weight", unpadded, first),
        Rename(f"{theirs}pre_attention_layer_norm.weight", f"{ours}attention_norm.weight"),
        Fuse(f"{theirs}attention.{{query,key,value}}.weight", f"{ours}attention.qkv.weight"),
        Rename(f"{theirs}attention.output.weight", f"{ours}attention.out.weight"),
        Rename(f"{theirs}pre_mlp_layer_norm.weight", f"{ours}ffn_norm.weight"),
        Fuse(f"{theirs}mlp.{{wi_0,wi_1}}.weight", f"{ours}ffn.up.weight"),
        Rename(f"{theirs}mlp.wo.weight", f"{ours}ffn.down.weight"),
        Rename("layernorm.weight", "norm.weight"),
    ]


SPEC = ModelSpec("pix2struct-vision", Pix2StructVisionConfig, parse, Pix2StructVision, rules)
