"""BLIP-2's visual encoder (Li et al., arXiv:2301.12597): a ViT, a Q-Former whose queries look at its rows, and a
projection to the language model's width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from visual_engines.layers import ACTIVATIONS, activation_of
from visual_engines.models import vit
from visual_engines.models.vit import ViT, ViTConfig
from vlm.config import VisionConfig
from vlm.convert.config_reader import ConfigReader
from vlm.convert.rules import Apply, Drop, Fuse, Rename
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.norm import LayerNorm
from vlm.layers.quant.producer import Producer
from vlm.registry.spec import ModelSpec

PREFIXES = ("", "model.")
TEXTS = "of texts, which the Q-Former does not read here"
QFORMER_TEXTS = (
    "embeddings.position_ids",
    *(f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position")),
    *(
        f"encoder.layer.{{}}.{part}.{kind}"
        for part in ("intermediate.dense", "output.dense", "output.LayerNorm")
        for kind in ("weight", "bias")
    ),
)


@dataclass(frozen=True)
class Blip2VisionConfig(VisionConfig):
    tower: ViTConfig
    text_width: int
    num_queries: int
    width: int  # of the Q-Former
    ffn_size: int
    num_layers: int
    num_heads: int
    cross_every: int  # layers: the first of so many looks at the image
    activation: str
    norm_eps: float
    image_token_id: int | None = None

    @property
    def num_features(self) -> int:
        return self.num_queries

    @property
    def hidden_size(self) -> int:
        return self.text_width


def parse(hf: dict[str, Any]) -> Blip2VisionConfig:
    """Reads a whole Hugging Face `blip-2` configuration. Raises ConfigError that names every field it cannot
    honour."""
    fields = ConfigReader(hf, "BLIP-2", aliases={"image_token_id": "image_token_index"})
    text = hf.get("text_config") or {}
    tower = vit.parse(hf.get("vision_config") or {}, kind=vit.KINDS[2])
    queries = ConfigReader(hf.get("qformer_config") or {}, "Q-Former")
    config = Blip2VisionConfig(
        image_size=tower.image_size,
        num_channels=tower.num_channels,
        tower=tower,
        text_width=text.get("hidden_size") or text.get("d_model") or (512 if text.get("model_type") == "t5" else 768),
        num_queries=fields.size("num_query_tokens", 32),
        width=queries.size("hidden_size", 768),
        ffn_size=queries.size("intermediate_size", 3072),
        num_layers=queries.size("num_hidden_layers", 12),
        num_heads=queries.size("num_attention_heads", 12),
        cross_every=queries.size("cross_attention_frequency", 2),
        activation=queries.choice("hidden_act", ACTIVATIONS, default="gelu"),
        norm_eps=queries.get("layer_norm_eps", 1e-12),
        image_token_id=fields.token_id("image_token_index", None),
    )
    queries.multiple("hidden_size", config.width, "num_attention_heads", config.num_heads)
    fields.errors += queries.errors
    fields.raise_errors()
    return config


class Attention(nn.Module):
    """Attends from queries to themselves, or to an image's rows; the sum with what went in is normalized."""

    def __init__(self, config: Blip2VisionConfig, context: ModelContext, source: int | None = None):
        super().__init__()
        width, self.head_dim = config.width, config.width // config.num_heads
        self.q = Linear(width, {"q": width}, axis="column", context=context)
        self.kv = Linear(source or width, {"k": width, "v": width}, axis="column", context=context)
        self.out = Linear(width, width, axis="row", context=context)
        self.producers = {"out": Producer("kv", "v")}
        self.norm = LayerNorm(width, eps=config.norm_eps)

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        """Maps x [n, Q, C], features [n, T, source] -> [n, Q, C]"""
        q = self._heads(self.q(x))
        k, v = (self._heads(part) for part in self.kv(features).chunk(2, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.norm(x, self.out(y))[1]

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class QueryLayer(nn.Module):
    """Is BERT's layer, of queries: self-attention, cross-attention in some layers, feed-forward; norms after each."""

    def __init__(self, config: Blip2VisionConfig, context: ModelContext, looks: bool):
        super().__init__()
        self.attention, width = Attention(config, context), config.width
        self.cross_attention = Attention(config, context, config.tower.hidden_size) if looks else None
        self.up = Linear(width, {"up": config.ffn_size}, axis="column", context=context)
        self.down = Linear(config.ffn_size, width, axis="row", context=context)
        self.activation = activation_of(config.activation)
        self.norm = LayerNorm(width, eps=config.norm_eps)
        self.producers = {"down": Producer("up", "up")} if config.activation == "relu" else {}

    def forward(self, x: Tensor, image: Tensor) -> Tensor:
        x = self.attention(x, x)
        if self.cross_attention is not None:
            x = self.cross_attention(x, image)
        return self.norm(x, self.down(self.up(x, activation=self.activation)))[1]


class Blip2Vision(nn.Module):
    """Turns pixels into a row a query, in the language model's width."""

    def __init__(self, config: Blip2VisionConfig, context: ModelContext):
        super().__init__()
        self.config = config
        self.tower = ViT(config.tower, context)
        self.queries = nn.Parameter(torch.zeros(config.num_queries, config.width))
        self.query_norm = LayerNorm(config.width, eps=config.norm_eps)
        looks = [i % config.cross_every == 0 for i in range(config.num_layers)]
        self.layers = nn.ModuleList(QueryLayer(config, context, each) for each in looks)
        self.projection = Linear(config.width, config.text_width, context=context)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Maps [n, channels, H, W] -> [n, num_queries, text_width]"""
        image = self.tower(pixel_values)
        x = self.query_norm(self.queries)[1].expand(image.shape[0], -1, -1)
        for layer in self.layers:
            x = layer(x, image)
        return self.projection(x)


def rules(config: Blip2VisionConfig) -> list[Any]:
    """Returns weight rules of `Blip2ForConditionalGeneration`'s visual part, under the names of its releases."""
    return [rule for prefix in PREFIXES for rule in _rules(config, prefix)]


def _rules(config: Blip2VisionConfig, prefix: str) -> list[Any]:
    layer = f"{prefix}qformer.encoder.layer.{{}}"
    names = {f"{prefix}qformer.layernorm": "query_norm", f"{prefix}language_projection": "projection",
             f"{layer}.intermediate_query.dense": "layers.{}.up", f"{layer}.output_query.dense": "layers.{}.down",
             f"{layer}.output_query.LayerNorm": "layers.{}.norm"}  # fmt: skip
    weight_rules: list[Any] = [
        Apply(f"{prefix}query_tokens", "queries", lambda x: x[0], "saved as of one image", optional=True),
        *(Drop(f"{prefix}qformer.{name}", TEXTS, optional=True) for name in QFORMER_TEXTS),
        *vit.rules(config.tower, f"{prefix}vision_model."),
    ]
    for theirs, ours in (("attention", "attention"), ("crossattention", "cross_attention")):
        inner, own = f"{layer}.{theirs}", f"layers.{{}}.{ours}"
        names |= {f"{inner}.attention.query": f"{own}.q", f"{inner}.output.dense": f"{own}.out",
                  f"{inner}.output.LayerNorm": f"{own}.norm"}  # fmt: skip
        for kind in ("weight", "bias"):
            weight_rules.append(Fuse(f"{inner}.attention.{{key,value}}.{kind}", f"{own}.kv.{kind}", optional=True))
    pairs = [(f"{a}.{kind}", f"{b}.{kind}") for a, b in names.items() for kind in ("weight", "bias")]
    return weight_rules + [Rename(a, b, optional=True) for a, b in pairs]


SPEC = ModelSpec("blip2-vision", Blip2VisionConfig, parse, Blip2Vision, rules)
