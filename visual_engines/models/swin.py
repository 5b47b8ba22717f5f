"""Swin encoders as Donut and Nougat use them, equal to Hugging Face's DonutSwinModel.

Liu et al., Swin Transformer (arXiv:2103.14030). Three things differ from timm's own tower: the grid is padded before it
is shifted (the other way round an uneven grid gives other windows), a grid as small as a window is not shifted in
either direction, and there is no norm at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visual_engines.layers import Mlp, PatchEmbed, window_partition, window_reverse
from vlm.config import VisionConfig
from vlm.convert.config_reader import ConfigReader, is_size
from vlm.convert.rules import Drop, Fuse, Rename
from vlm.errors import shown
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.quant.producer import Producer
from vlm.ops.add_layer_norm import add_layer_norm
from vlm.registry.spec import ModelSpec

ACTIVATIONS = ("gelu", "gelu_new", "relu", "silu", "swish")
SHIFT_MASK = -100.0  # finite, as published (and in the kernel): a masked cell keeps a weight of e^-100


@dataclass(frozen=True)
class SwinConfig(VisionConfig):
    patch_size: tuple[int, int]
    embed_dim: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    window_size: int
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    activation: str = "gelu"
    layer_norm_eps: float = 1e-5

    @property
    def grids(self) -> list[tuple[int, int]]:
        """Returns (rows, columns) of each stage; odd grids are padded when they are merged."""
        height, width = (-(-size // patch) for size, patch in zip(self.image_size, self.patch_size, strict=True))
        grids = [(height, width)]
        for _ in self.depths[1:]:
            height, width = (height + 1) // 2, (width + 1) // 2
            grids.append((height, width))
        return grids

    @property
    def num_features(self) -> int:
        height, width = self.grids[-1]
        return height * width

    @property
    def hidden_size(self) -> int:
        return self.embed_dim * 2 ** (len(self.depths) - 1)


def parse(hf: dict[str, Any]) -> SwinConfig:
    """Reads a Hugging Face `donut-swin` configuration. Raises ConfigError that names every field it cannot honour."""
    fields = ConfigReader(hf, "Swin encoder", aliases={"num_attention_heads": "num_heads"})
    fields.choice("model_type", ["donut-swin"])
    fields.choice("use_absolute_embeddings", [False], default=False)
    config = SwinConfig(
        image_size=_tuple(fields.get("image_size", 224), of=2),
        num_channels=fields.get("num_channels", 3),
        patch_size=_tuple(fields.get("patch_size", 4), of=2),
        embed_dim=fields.get("embed_dim", 96),
        depths=_tuple(fields.get("depths", (2, 2, 6, 2))),
        num_heads=_tuple(fields.get("num_heads", (3, 6, 12, 24))),
        window_size=fields.get("window_size", 7),
        mlp_ratio=fields.get("mlp_ratio", 4.0),
        qkv_bias=fields.get("qkv_bias", True),
        activation=fields.choice("hidden_act", ACTIVATIONS, default="gelu"),
        layer_norm_eps=fields.get("layer_norm_eps", 1e-5),
    )
    if not (malformed := _malformed(config)):
        fields.check_patches(config.image_size, max(config.patch_size))
    fields.errors += malformed or _contradictions(config)
    fields.raise_errors()
    return config


def _tuple(value: Any, of: int = 1) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,) * of


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


_KINDS = (
    ("a positive whole number", ("num_channels", "embed_dim", "window_size"), is_size),
    ("a height and a width", ("image_size", "patch_size"), lambda x: len(x) == 2 and all(map(is_size, x))),
    ("a positive whole number a stage", ("depths", "num_heads"), lambda x: x and all(map(is_size, x))),
    ("a positive number", ("mlp_ratio", "layer_norm_eps"), _positive),
    ("true or false", ("qkv_bias",), lambda x: isinstance(x, bool)),
)


def _malformed(config: SwinConfig) -> list[str]:
    values = [(name, getattr(config, name), kind, right) for kind, names, right in _KINDS for name in names]
    return [f"{name} is {shown(value)}, it must be {kind}" for name, value, kind, right in values if not right(value)]


def _contradictions(config: SwinConfig) -> list[str]:
    if len(config.depths) != len(config.num_heads):
        return [f"depths has {len(config.depths)} stages, num_heads {len(config.num_heads)}"]
    errors = []
    for stage, heads in enumerate(config.num_heads):
        if (width := config.embed_dim * 2**stage) % heads:
            errors.append(f"stage {stage} has {width} channels, no multiple of its {heads} heads")
    if smallest := [grid for grid in config.grids if min(grid) < config.window_size]:
        errors.append(f"a stage's grid {smallest[0]} is smaller than the window of {config.window_size}")
    return errors


def relative_position_index(side: int) -> Tensor:
    """Returns for each pair of a window's cells its row in the bias table: [side², side²]."""
    cells = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    apart = cells[:, None] - cells[None] + side - 1  # from 0
    return apart[..., 0] * (2 * side - 1) + apart[..., 1]


class WindowAttention(nn.Module):
    """Attends inside windows, every other time shifted by half a window, with a learned bias by relative position.

    Ranks do not split it: the table of biases and the kernel know all heads.
    """

    def __init__(self, config: SwinConfig, stage: int, shift: int, context: ModelContext):
        super().__init__()
        width, grid = config.embed_dim * 2**stage, config.grids[stage]
        self.num_heads, self.window, self.shift = config.num_heads[stage], config.window_size, shift
        self.padding = tuple(-side % self.window for side in grid)
        self.padded_grid = tuple(side + more for side, more in zip(grid, self.padding, strict=True))
        self.relative_position_bias_table = nn.Parameter(torch.zeros((2 * self.window - 1) ** 2, self.num_heads))
        parts = {"q": width, "k": width, "v": width}
        self.qkv = Linear(width, parts, bias=config.qkv_bias, context=context)
        self.proj = Linear(width, width, context=context)
        self.producers = {"proj": Producer("qkv", "v")}
        self.register_buffer("bias", None, persistent=False)

    def init_buffers(self, device: torch.device) -> None:
        """Makes the bias of every head and pair of cells once, not in each pass, as `device` takes it."""
        area = self.window**2
        index = relative_position_index(self.window).to(device)
        bias = self.relative_position_bias_table.detach()[index.view(-1)].view(area, area, -1).permute(2, 0, 1)
        if device.type == "cuda":
            from visual_engines.models.swin_kernels import padded_area

            self.bias = F.pad(bias, (0, padded_area(self.window) - area)).contiguous()
        elif self.shift:
            self.bias = (self._shift_mask(device)[:, None] + bias).flatten(0, 1)[None]
        else:
            self.bias = bias[None].contiguous()

    def _shift_mask(self, device: torch.device) -> Tensor:
        """Returns [windows, area, area]: cells that were apart before the cyclic shift must not see each other."""
        dtype = self.relative_position_bias_table.dtype
        past = lambda side, edge: (torch.arange(side, device=device) >= side - edge).to(dtype)  # noqa: E731
        rows, columns = (past(side, self.window) + past(side, self.shift) for side in self.padded_grid)
        region = (rows[:, None] * 3 + columns[None])[None, :, :, None]
        region = window_partition(region, self.window).flatten(1)
        return torch.where(region[:, None] != region[:, :, None], SHIFT_MASK, 0.0).to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [images, rows, columns, C] -> the same"""
        if x.is_cuda:
            from visual_engines.models.swin_kernels import window_attention

            y = window_attention(self.qkv(x), self.qkv.bias, self.bias, self.window, self.shift)
        else:
            y = self._by_windows(x)
        return self.proj(y)

    def _by_windows(self, x: Tensor) -> Tensor:
        images, height, width, channels = x.shape
        if any(self.padding):
            x = F.pad(x, (0, 0, 0, self.padding[1], 0, self.padding[0]))
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        y = self._attend(window_partition(x, self.window).view(images, -1, self.window**2, channels))
        y = window_reverse(y.view(-1, self.window, self.window, channels), *self.padded_grid)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        return y[:, :height, :width]

    def _attend(self, x: Tensor) -> Tensor:
        """Maps x [images, windows, area, C] -> the same"""
        images, windows, area, width = x.shape
        qkv = self.qkv(x).view(images, windows, area, 3, self.num_heads, -1).permute(3, 0, 1, 4, 2, 5)
        # the mask differs by window and not by image: windows join the heads, so that it broadcasts over images
        shape = (3, images, -1) if self.shift else (3, -1, self.num_heads)
        q, k, v = qkv.reshape(*shape, area, width // self.num_heads).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias.expand(q.shape[0], -1, -1, -1))
        return y.reshape(images, windows, self.num_heads, area, -1).transpose(2, 3).reshape(x.shape)


class LayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.of_sum(x, None)[1]

    def of_sum(self, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns x + delta and its norm."""
        return add_layer_norm(x, delta, self.weight, self.bias, self.eps)


class Block(nn.Module):
    def __init__(self, config: SwinConfig, stage: int, index: int, context: ModelContext):
        super().__init__()
        width, grid = config.embed_dim * 2**stage, config.grids[stage]
        # one window high or wide: there is nothing to shift to
        shift = 0 if index % 2 == 0 or min(grid) <= config.window_size else config.window_size // 2
        self.norm1 = LayerNorm(width, eps=config.layer_norm_eps)
        self.attention = WindowAttention(config, stage, shift, context)
        self.norm2 = LayerNorm(width, eps=config.layer_norm_eps)
        self.mlp = Mlp(width, int(width * config.mlp_ratio), config.activation, context=context)
        self.producers = {"attention.qkv": Producer("norm1"), "mlp.fc1": Producer("norm2")}

    def forward(self, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """Maps x [images, rows, columns, C] and what is still to be added to it -> the same"""
        x, y = self.norm1.of_sum(x, delta)
        x, y = self.norm2.of_sum(x, self.attention(y))
        return x, self.mlp(y)


class PatchMerging(nn.Module):
    """Makes one cell of 2 × 2, twice as wide; an odd side gets a border of zeros."""

    def __init__(self, width: int, context: ModelContext):
        super().__init__()
        # the norm's eps is not the configuration's
        self.norm = LayerNorm(4 * width)
        self.reduction = Linear(4 * width, 2 * width, bias=False, context=context)
        self.producers = {"reduction": Producer("norm")}

    def forward(self, x: Tensor, delta: Tensor | None) -> Tensor:
        """Maps x [images, rows, columns, C] and what is to be added
        -> [images, ceil(rows / 2), ceil(columns / 2), 2 C]"""
        if x.is_cuda:
            from visual_engines.models.swin_kernels import merge_norm

            return self.reduction(merge_norm(x, delta, self.norm.weight, self.norm.bias, self.norm.eps))
        return self.reduction(self.norm(merged(x if delta is None else x + delta)))


def merged(x: Tensor) -> Tensor:
    """Makes one cell of 2 × 2: [images, rows, columns, C] -> [images, ceil(rows / 2), ceil(columns / 2), 4 C]"""
    images, height, width, channels = x.shape
    x = F.pad(x, (0, 0, 0, width % 2, 0, height % 2))
    x = x.reshape(images, -(-height // 2), 2, -(-width // 2), 2, channels)
    return x.permute(0, 1, 3, 4, 2, 5).flatten(3)


class Stage(nn.Module):
    """Runs blocks of one resolution; then 2 × 2 cells become one, but for the last stage."""

    def __init__(self, config: SwinConfig, stage: int, context: ModelContext):
        super().__init__()
        self.blocks = nn.ModuleList(Block(config, stage, i, context) for i in range(config.depths[stage]))
        last = stage == len(config.depths) - 1
        self.downsample = None if last else PatchMerging(config.embed_dim * 2**stage, context)

    def forward(self, x: Tensor) -> Tensor:
        delta = None
        for block in self.blocks:
            x, delta = block(x, delta)
        if self.downsample is not None:
            return self.downsample(x, delta)
        return x if delta is None else x + delta


class SwinEncoder(nn.Module):
    """Turns pixels into feature rows. Call `init_buffers` when weights are put in place, move or change."""

    def __init__(self, config: SwinConfig, context: ModelContext):
        super().__init__()
        self.config = config
        norm = LayerNorm(config.embed_dim)
        self.patch_embed = PatchEmbed(config.patch_size, config.num_channels, config.embed_dim, norm=norm)
        self.stages = nn.Sequential(*(Stage(config, i, context) for i in range(len(config.depths))))

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the weights and is not stored."""
        for module in self.modules():
            if isinstance(module, WindowAttention):
                module.init_buffers(device)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Maps pixel_values [n, C, H, W] -> [n, num_features, hidden_size]"""
        return self.stages(self.patch_embed(pixel_values)).flatten(1, 2)


def rules(config: SwinConfig) -> list[Any]:
    """Returns weight rules of `DonutSwinModel` (names without the role's prefix)."""
    stage, block = "encoder.layers.{}", "encoder.layers.{}.blocks.{}"
    names = {
        "embeddings.patch_embeddings.projection": "patch_embed.proj",
        "embeddings.norm": "patch_embed.norm",
        f"{block}.layernorm_before": "stages.{}.blocks.{}.norm1",
        f"{block}.layernorm_after": "stages.{}.blocks.{}.norm2",
        f"{block}.attention.output.dense": "stages.{}.blocks.{}.attention.proj",
        f"{block}.intermediate.dense": "stages.{}.blocks.{}.mlp.fc1",
        f"{block}.output.dense": "stages.{}.blocks.{}.mlp.fc2",
    }
    weight_rules: list[Any] = [
        Rename(f"{a}.{kind}", f"{b}.{kind}") for a, b in names.items() for kind in ("weight", "bias")
    ]
    is_single = len(config.depths) == 1  # a single stage merges nothing
    for name in ("reduction.weight", "norm.weight", "norm.bias"):
        weight_rules.append(Rename(f"{stage}.downsample.{name}", f"stages.{{}}.downsample.{name}", optional=is_single))
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        source = f"{block}.attention.self.{{query,key,value}}.{kind}"
        weight_rules.append(Fuse(source, f"stages.{{}}.blocks.{{}}.attention.qkv.{kind}"))
    table = "relative_position_bias_table"
    weight_rules.append(Rename(f"{block}.attention.self.{table}", f"stages.{{}}.blocks.{{}}.attention.{table}"))
    index = f"{block}.attention.self.relative_position_index"
    weight_rules.append(Drop(index, "follows from the window size", optional=True))
    weight_rules.append(Drop(f"{block}.attn_mask", "follows from the window and image size", optional=True))
    return weight_rules


SPEC = ModelSpec("donut-swin", SwinConfig, parse, SwinEncoder, rules)
