"""Plain vision transformers (Dosovitskiy et al., arXiv:2010.11929): ViT, DeiT, CLIP's, SigLIP's and BLIP-2's.

They differ in the tokens before the patches, in norms at the ends, in biases and in the activation. CLIP: Radford et
al. (arXiv:2103.00020); SigLIP: Zhai et al. (arXiv:2303.15343); BLIP-2's ViT-g: Fang et al., EVA (arXiv:2211.07636);
DeiT: Touvron et al. (arXiv:2012.12877).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visual_engines.layers import ACTIVATIONS, Mlp, PatchEmbed
from vlm.config import VisionConfig
from vlm.convert.config_reader import ConfigReader
from vlm.convert.rules import Apply, Drop, Fuse, Rename
from vlm.errors import shown
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.norm import LayerNorm
from vlm.layers.quant.producer import Producer

KINDS = ("clip_vision_model", "siglip_vision_model", "blip_2_vision_model")  # of a language model's towers
ENCODERS = ("vit", "deit")  # before a decoder that attends to their rows
TOKENS = {"siglip_vision_model": (), "deit": ("class_token", "distillation_token")}  # all others: the first alone


@dataclass(frozen=True)
class ViTConfig(VisionConfig):
    """`layers`: after how many blocks features are taken, counted as the source counts them; several are joined."""

    patch_size: int
    width: int
    ffn_size: int
    num_layers: int  # that the source has
    num_heads: int
    activation: str
    norm_eps: float
    layers: tuple[int, ...]
    kind: str = KINDS[0]
    qkv_bias: bool = True
    final_norm: bool = False  # of what the last block gives

    @property
    def depth(self) -> int:
        """Counts the blocks that are run."""
        return max(self.layers)

    @property
    def tokens(self) -> tuple[str, ...]:
        """Names what stands before the patches."""
        return TOKENS.get(self.kind, ("class_token",))

    @property
    def class_token(self) -> bool:
        return bool(self.tokens)

    @property
    def embedding_norm(self) -> bool:
        return self.kind == "clip_vision_model"

    @property
    def grid(self) -> tuple[int, int]:
        """Returns rows and columns of patches."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    @property
    def num_features(self) -> int:
        return self.grid[0] * self.grid[1] + len(self.tokens)

    @property
    def hidden_size(self) -> int:
        return self.width * len(self.layers)


# what a configuration that does not say has, by kind: width, ffn, layers, heads, image, patch, activation, eps
DEFAULTS = {
    "clip_vision_model": (768, 3072, 12, 12, 224, 32, "quick_gelu", 1e-5),
    "siglip_vision_model": (768, 3072, 12, 12, 224, 16, "gelu_pytorch_tanh", 1e-6),
    "blip_2_vision_model": (1408, 6144, 39, 16, 224, 14, "gelu", 1e-6),
    **dict.fromkeys(ENCODERS, (768, 3072, 12, 12, 224, 16, "gelu", 1e-12)),
}


def parse(
    hf: dict[str, Any],
    layers: int | list[int] | None = None,
    kind: str = KINDS[0],
    *,
    kinds: tuple[str, ...] = KINDS,
) -> ViTConfig:
    """Reads a Hugging Face configuration of a tower. Raises ConfigError that names every field it cannot honour.

    `layers`: the feature layers as Hugging Face numbers them, -1 the last; None: the last one, normalized. `kind`: what
    it is where it does not say; `kinds`: what it may be.
    """
    fields = ConfigReader(hf, "vision tower")
    kind = fields.choice("model_type", kinds, default=kind)
    width, ffn, depth, heads, image, patch, activation, eps = DEFAULTS.get(kind, DEFAULTS[KINDS[0]])
    depth = fields.size("num_hidden_layers", depth)
    feature_layers = [depth] if layers is None else _feature_layers(fields, layers)
    layer_indices = tuple(depth + 1 + layer if layer < 0 else layer for layer in feature_layers)
    config = ViTConfig(
        image_size=fields.sides("image_size", image),
        num_channels=fields.size("num_channels", 3) if kind != KINDS[2] else 3,
        patch_size=fields.sides("patch_size", patch)[0],
        width=fields.size("hidden_size", width),
        ffn_size=fields.size("intermediate_size", ffn),
        num_layers=depth,
        num_heads=fields.size("num_attention_heads", heads),
        activation=fields.choice("hidden_act", ACTIVATIONS, default=activation),
        norm_eps=fields.get("layer_norm_eps", eps),
        layers=layer_indices,
        kind=kind,
        qkv_bias=bool(fields.get("qkv_bias", True)) if kind in (KINDS[2], *ENCODERS) else True,
        final_norm=layers is None,
    )
    if invalid := [layer for layer, n in zip(feature_layers, layer_indices, strict=True) if not 0 <= n <= depth]:
        fields.errors.append(f"feature layer {invalid[0]} does not exist: there are {depth} layers")
    fields.check_patches(config.image_size, config.patch_size)
    fields.multiple("hidden_size", config.width, "num_attention_heads", config.num_heads)
    fields.raise_errors()
    return config


def _feature_layers(fields: ConfigReader, layers: Any) -> list[int]:
    """Reads one number of a layer, or several."""
    numbers = layers if isinstance(layers, list | tuple) else [layers]
    if numbers and all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        return list(numbers)
    fields.errors.append(f"the feature layer is {shown(layers)}, it must be a whole number, or several")
    return [0]


class Attention(nn.Module):
    """Attends from every row to all rows of its image."""

    def __init__(self, config: ViTConfig, context: ModelContext):
        super().__init__()
        width, self.head_dim = config.width, config.width // config.num_heads
        parts = {"q": width, "k": width, "v": width}
        self.qkv = Linear(width, parts, bias=config.qkv_bias, axis="column", context=context)
        self.proj = Linear(width, width, axis="row", context=context)
        self.producers = {"proj": Producer("qkv", "v")}

    def forward(self, x: Tensor) -> Tensor:
        """Maps x [n, T, C] -> the same"""
        n, rows, _ = x.shape
        q, k, v = self.qkv(x).view(n, rows, 3, -1, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, config: ViTConfig, context: ModelContext):
        super().__init__()
        self.norm1, self.norm2 = (LayerNorm(config.width, eps=config.norm_eps) for _ in range(2))
        self.attention = Attention(config, context)
        self.mlp = Mlp(config.width, config.ffn_size, config.activation, context=context)
        self.producers = {"attention.qkv": Producer("norm1"), "mlp.fc1": Producer("norm2")}

    def forward(self, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """Returns the residual stream [n, T, C] and the last sublayer's output, which the next norm adds."""
        x, y = self.norm1(x, delta)
        x, y = self.norm2(x, self.attention(y))
        return x, self.mlp(y)


class ViT(nn.Module):
    """Turns pixels into rows, after those of its tokens."""

    def __init__(self, config: ViTConfig, context: ModelContext):
        super().__init__()
        self.config = config
        clip = config.kind == "clip_vision_model"
        self.patch_embed = PatchEmbed(config.patch_size, config.num_channels, config.width, bias=not clip)
        for name in config.tokens:
            self.register_parameter(name, nn.Parameter(torch.zeros(config.width)))
        self.positions = nn.Parameter(torch.zeros(config.num_features, config.width))
        if config.embedding_norm:
            self.embedding_norm = LayerNorm(config.width, eps=config.norm_eps)
        self.blocks = nn.ModuleList(Block(config, context) for _ in range(config.depth))
        if config.final_norm:
            self.final_norm = LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Maps [n, channels, H, W] -> [n, num_features, hidden_size]"""
        x, delta = self._embedded(pixel_values), None
        states = {0: x}
        for i, block in enumerate(self.blocks, 1):
            x, delta = block(x, delta)
            if i in self.config.layers and not self.config.final_norm:
                states[i] = x + delta
        if self.config.final_norm:
            return self.final_norm(x, delta)[1]
        rows = [states[i] for i in self.config.layers]
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)

    def _embedded(self, pixel_values: Tensor) -> Tensor:
        rows, columns = (count * self.config.patch_size for count in self.config.grid)
        x = self.patch_embed(pixel_values[:, :, :rows, :columns]).flatten(1, 2)  # no patch of what is left over
        tokens = [self.get_parameter(name).expand(x.shape[0], 1, -1) for name in self.config.tokens]
        x = (torch.cat([*tokens, x], 1) if tokens else x) + self.positions
        return self.embedding_norm(x)[1] if self.config.embedding_norm else x


def rules(config: ViTConfig, prefix: str, to: str = "tower.") -> list[Any]:
    """Returns weight rules of `CLIPVisionModel`, `SiglipVisionModel` or `Blip2VisionModel`, named `prefix`…"""
    row = "the class token's row is kept as a vector"
    e = f"{prefix}embeddings"
    weight_rules: list[Any] = [Drop(f"{e}.position_ids", "they are counted", optional=True)]
    if config.kind == "blip_2_vision_model":
        weight_rules += [
            Apply(f"{e}.class_embedding", f"{to}class_token", lambda x: x.flatten(), row, optional=True),
            Apply(f"{e}.position_embedding", f"{to}positions", lambda x: x[0], "saved as of one image", optional=True),
        ]
    else:
        weight_rules += _optional({f"{e}.class_embedding": f"{to}class_token"} if config.class_token else {}, ("",))
        weight_rules += _optional({f"{e}.position_embedding": f"{to}positions"}, (".weight",), ("",))
    weight_rules += _optional({f"{e}.patch_embedding": f"{to}patch_embed.proj"})
    if config.embedding_norm:
        weight_rules += _optional({f"{prefix}pre_layrnorm": f"{to}embedding_norm"})
    if config.final_norm:
        weight_rules += _optional({f"{prefix}post_layernorm": f"{to}final_norm"})
    else:
        weight_rules += _dropped(f"{prefix}post_layernorm.{{}}", "features are taken before it", ("weight", "bias"))
    if config.kind == "siglip_vision_model":
        weight_rules += _dropped(f"{prefix}head.{{}}", "it pools features, which are taken before it", SIGLIP_HEAD)
    for i in range(config.num_layers):
        layer = f"{prefix}encoder.layers.{i}."
        weight_rules += _layer_rules(layer, f"{to}blocks.{i}.") if i < config.depth else _unused(layer)
    return weight_rules


SIGLIP_HEAD = (
    *("probe", "attention.in_proj_weight", "attention.in_proj_bias"),
    *(
        f"{part}.{kind}"
        for part in ("attention.out_proj", "layernorm", "mlp.fc1", "mlp.fc2")
        for kind in ("weight", "bias")
    ),
)
LAYER = {"layer_norm1": "norm1", "layer_norm2": "norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2",
         "self_attn.out_proj": "attention.proj", "self_attn.projection": "attention.proj",
         "self_attn.qkv": "attention.qkv"}  # fmt: skip


def _layer_rules(layer: str, ours: str) -> list[Any]:
    weight_rules = _optional({f"{layer}{a}": f"{ours}{b}" for a, b in LAYER.items()})
    for kind in ("weight", "bias"):
        qkv = Fuse(f"{layer}self_attn.{{q,k,v}}_proj.{kind}", f"{ours}attention.qkv.{kind}", optional=True)
        weight_rules.append(qkv)
    return weight_rules


def _unused(layer: str) -> list[Any]:
    parts = (*LAYER, *(f"self_attn.{x}_proj" for x in "qkv"))
    names = [f"{part}.{kind}" for part in parts for kind in ("weight", "bias")]
    return _dropped(f"{layer}{{}}", "features are taken before this layer", names)


def _optional(
    names: dict[str, str], kinds: tuple[str, ...] = (".weight", ".bias"), to: tuple[str, ...] | None = None
) -> list[Any]:
    """Renames what a file has under one prefix or another, so that each is optional; a target left over is an error."""
    pairs = list(zip(kinds, to or kinds, strict=True))
    return [Rename(f"{a}{x}", f"{b}{y}", optional=True) for a, b in names.items() for x, y in pairs]


def _dropped(pattern: str, reason: str, names: tuple[str, ...] | list[str]) -> list[Any]:
    return [Drop(pattern.format(name), reason, optional=True) for name in names]
