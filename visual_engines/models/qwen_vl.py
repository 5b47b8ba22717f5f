"""The visual encoders of Qwen2-VL (Wang et al., arXiv:2409.12191) and Qwen2.5-VL (Bai et al., arXiv:2502.13923).

Images of any size, their patches' rows and columns as rotary positions, squares of rows merged into one of the language
model's. Most layers of the second attend within windows alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visual_engines.layers import ACTIVATIONS, GridRotary, Mlp, grid_theta
from vlm.convert.config_reader import ConfigReader, token_id
from vlm.convert.rules import Apply, Fuse, Rename
from vlm.layers.attention import EncoderAttention
from vlm.layers.context import ModelContext
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.images.patches import PatchedVisionConfig
from vlm.layers.linear import Linear
from vlm.layers.norm import LayerNorm, RmsNorm
from vlm.layers.quant.producer import Producer
from vlm.registry.spec import ModelSpec

NORM_EPS = 1e-6  # that of its class
MOST_PIXELS = (3584, 3584)  # the published processors' max_pixels, 16,384 rows, as a square
SCREEN = (1080, 1920)


@dataclass(frozen=True)
class QwenVisionConfig(PatchedVisionConfig):
    frames: int  # that a patch spans; an image is its own second frame
    width: int
    ffn_size: int
    num_layers: int
    num_heads: int
    text_width: int
    activation: str
    gated: bool = False  # the second's layers: gated, and RMS norms
    window_size: int | None = None  # pixels to a side
    whole_layers: tuple[int, ...] = ()  # that attend to whole images where others do within windows
    theta: float = 10000.0
    image_token_id: int | None = None

    @property
    def hidden_size(self) -> int:
        return self.text_width

    @property
    def side_step(self) -> int:
        return self.patch_size

    @property
    def window(self) -> int | None:
        return self.window_size and self.window_size // (self.patch_size * self.merge_size)

    @property
    def usual_size(self) -> tuple[int, int]:
        """That of a screen."""
        square = self.patch_size * self.merge_size
        height, width = (round(side / square) * square for side in SCREEN)
        return height, width

    @property
    def shapes(self) -> str:
        sides = f"multiples of {self.patch_size * self.merge_size}"
        return f"({self.num_channels}, height, width), {sides}, of up to {self._most_pixels:,} pixels"

    def takes(self, height: int, width: int) -> bool:
        square = self.patch_size * self.merge_size
        whole = all(side >= square and side % square == 0 for side in (height, width))
        return whole and height * width <= self._most_pixels

    @property
    def _most_pixels(self) -> int:
        return self.image_size[0] * self.image_size[1]


def parse(hf: dict[str, Any]) -> QwenVisionConfig:
    """Reads a whole Hugging Face `qwen2_vl` or `qwen2_5_vl` configuration. Raises ConfigError that names every field it
    cannot honour."""
    fields = ConfigReader(hf.get("vision_config") or {}, "Qwen-VL tower", {"num_attention_heads": "num_heads"})
    second = hf.get("model_type") == "qwen2_5_vl"
    width = fields.size("hidden_size", 3584) if second else fields.size("embed_dim", 1280)
    heads = fields.size("num_heads", 16)
    config = QwenVisionConfig(
        image_size=MOST_PIXELS,
        num_channels=fields.size("in_channels", 3),
        patch_size=fields.size("patch_size", 14),
        merge_size=fields.size("spatial_merge_size", 2),
        frames=fields.size("temporal_patch_size", 2),
        width=width,
        num_layers=fields.size("depth", 32),
        num_heads=heads,
        theta=grid_theta(fields),
        image_token_id=token_id(hf, "image_token_id", 151655),
        **(_second(fields) if second else _first(fields, width)),
    )
    fields.check_patches(config.image_size, config.patch_size, config.merge_size)
    fields.multiple("hidden_size" if second else "embed_dim", width, "4 · num_heads", 4 * heads)
    if config.window is not None and config.window < 1:
        fields.errors.append(f"window_size is {config.window_size}, less than a square of merged patches")
    fields.raise_errors()
    return config


def _first(fields: ConfigReader, width: int) -> dict[str, Any]:
    activation = fields.choice("hidden_act", ACTIVATIONS, default="quick_gelu")
    ffn = int(width * fields.get("mlp_ratio", 4))
    return {"ffn_size": ffn, "text_width": fields.size("hidden_size", 3584), "activation": activation}


def _second(fields: ConfigReader) -> dict[str, Any]:
    return {
        "ffn_size": fields.size("intermediate_size", 3420),
        "text_width": fields.size("out_hidden_size", 3584),
        "activation": fields.activation("hidden_act", "silu"),
        "gated": True,
        "window_size": fields.size("window_size", 112),
        "whole_layers": tuple(fields.get("fullatt_block_indexes", (7, 15, 23, 31))),
    }


def _norm(config: QwenVisionConfig) -> LayerNorm | RmsNorm:
    return RmsNorm(config.width, NORM_EPS) if config.gated else LayerNorm(config.width, eps=NORM_EPS)


class Block(nn.Module):
    def __init__(self, config: QwenVisionConfig, context: ModelContext):
        super().__init__()
        self.attention_norm, self.ffn_norm = _norm(config), _norm(config)
        self.attention = EncoderAttention(config.width, config.num_heads, context=context)
        sizes = (config.width, config.ffn_size, config.activation)
        self.ffn = FeedForward(*sizes, gated=True, context=context) if config.gated else Mlp(*sizes, context=context)
        first = "up" if config.gated else "fc1"
        self.producers = {"attention.qkv": Producer("attention_norm"), f"ffn.{first}": Producer("ffn_norm")}

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the residual stream [R, C] and the last sublayer's output, which the next norm adds."""
        x, y = self.attention_norm(x, delta)
        x, y = self.ffn_norm(x, self.attention(y, batch, angles=angles))
        return x, self.ffn(y, batch) if isinstance(self.ffn, FeedForward) else self.ffn(y)


class QwenVision(nn.Module):
    """Turns patches of several images into rows of the language model's width."""

    def __init__(self, config: QwenVisionConfig, context: ModelContext):
        super().__init__()
        self.config = config
        values = config.num_channels * config.frames * config.patch_size**2
        merged = config.width * config.merge_size**2
        self.patch_embed = Linear(values, config.width, bias=False, context=context)
        self.rotary = GridRotary(config.width // config.num_heads, config.theta, alike=True)
        self.blocks = nn.ModuleList(Block(config, context) for _ in range(config.num_layers))
        self.norm = _norm(config)
        self.up = Linear(merged, {"up": merged}, axis="column", context=context)
        self.down = Linear(merged, config.text_width, axis="row", context=context)

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the configuration and is not stored."""
        self.rotary.init_buffers(device)

    def forward(
        self, patches: Tensor, squares: Tensor, batch: ForwardBatch, within: ForwardBatch | None = None
    ) -> Tensor:
        """Maps patches [R, channels · side²], squares [S · merge²]: of which each row is made -> [S, text_width].
        `within`: the batch as windows."""
        x, delta, whole = self.patch_embed(self._filmed(patches)), None, self.config.whole_layers
        angles = self.rotary(batch.positions)
        for i, block in enumerate(self.blocks):
            x, delta = block(x, delta, batch if within is None or i in whole else within, angles)
        merged = self.norm(x, delta)[1][squares].view(-1, self.up.in_features)
        return self.down(F.gelu(self.up(merged)))

    def _filmed(self, patches: Tensor) -> Tensor:
        """Maps [R, channels · side²] -> [R, channels · frames · side²]: an image is each of the frames"""
        by_channel = patches.view(len(patches), self.config.num_channels, 1, -1)
        return by_channel.expand(-1, -1, self.config.frames, -1).flatten(1)


def rules(config: QwenVisionConfig) -> list[Any]:
    """Returns weight rules of `Qwen2VLForConditionalGeneration`'s and `Qwen2_5_VLForConditionalGeneration`'s visual
    parts."""
    flat = "patches are rows of their values, which the convolution's weights meet in the same order"
    layers = {"norm1": "attention_norm", "norm2": "ffn_norm", "attn.qkv": "attention.qkv", "attn.proj": "attention.out"}
    layers |= {"mlp.down_proj": "ffn.down"} if config.gated else {"mlp.fc1": "ffn.fc1", "mlp.fc2": "ffn.fc2"}
    names = {f"blocks.{{}}.{theirs}": f"blocks.{{}}.{ours}" for theirs, ours in layers.items()}
    names |= {"merger.ln_q": "norm", "merger.mlp.0": "up", "merger.mlp.2": "down"}
    weight_rules: list[Any] = [Apply("patch_embed.proj.weight", "patch_embed.weight", lambda x: x.flatten(1), flat)]
    for kind in ("weight", "bias"):
        # RMS norms have no bias
        has = [name for name in names if kind == "weight" or not (config.gated and ("norm" in name or "ln_q" in name))]
        weight_rules += [Rename(f"{name}.{kind}", f"{names[name]}.{kind}") for name in has]
        gates = [Fuse(f"blocks.{{}}.mlp.{{gate,up}}_proj.{kind}", f"blocks.{{}}.ffn.up.{kind}")]
        weight_rules += gates if config.gated else []
    return weight_rules


SPEC = ModelSpec("qwen-vl-vision", QwenVisionConfig, parse, QwenVision, rules)
