"""BART-shaped decoders over the paged cache. Today: mBART's (Nougat's text side).

Lewis et al., BART (arXiv:1910.13461); Liu et al., mBART (arXiv:2001.08210). mBART normalizes before each sublayer and
once more after the last, scales embeddings by sqrt(d_model), and learns positions that start at row 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from vlm.config import ModelConfig
from vlm.convert import Drop, Fuse, Rename
from vlm.foreign_config import ForeignConfig
from vlm.layers.attention import CrossAttention, PagedRows, SelfAttention
from vlm.layers.linear import Linear
from vlm.ops.add_layer_norm import add_layer_norm
from vlm.ops.linear import linear
from vlm.registry import ModelSpec

POSITION_OFFSET = 2  # rows 0 and 1 of the position table are never used: a relic of fairseq's padding index
ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "gelu_new": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}


@dataclass(frozen=True)
class BartConfig(ModelConfig):
    ffn_size: int
    activation: str = "gelu"
    scale_embedding: bool = True
    tied: bool = True
    layer_norm_eps: float = 1e-5

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.hidden_size) if self.scale_embedding else 1.0


def parse(hf: dict[str, Any]) -> BartConfig:
    """A Hugging Face `mbart` decoder configuration -> BartConfig; ConfigError names every field it cannot honour."""
    fields = ForeignConfig(hf, "mBART decoder")
    fields.allow("model_type", ["mbart"])
    fields.allow("is_decoder", [True], default=True)
    fields.ignore("dropout", "attention_dropout", "activation_dropout", "classifier_dropout", "init_std")
    fields.ignore("decoder_layerdrop", "encoder_layerdrop", "normalize_before", "normalize_embedding")
    fields.ignore(
        "encoder_layers",
        "encoder_ffn_dim",
        "encoder_attention_heads",
        "num_hidden_layers",
        "static_position_embeddings",
    )
    fields.allow("add_final_layer_norm", [True], default=True)
    hidden, heads = fields.take("d_model", 1024), fields.take("decoder_attention_heads", 16)
    if hidden % heads:
        fields.wrong.append(f"d_model {hidden} is no multiple of decoder_attention_heads {heads}")
    config = {
        "vocab_size": fields.take("vocab_size", 50265),
        "hidden_size": hidden,
        "num_layers": fields.take("decoder_layers", 12),
        "num_heads": heads,
        "max_positions": fields.take("max_position_embeddings", 1024),
        "ffn_size": fields.take("decoder_ffn_dim", 4096),
        "activation": fields.allow("activation_function", ACTIVATIONS, default="gelu"),
        "scale_embedding": fields.take("scale_embedding", False),
        "tied": hf.get("tie_word_embeddings", True),
        "bos_token_id": _id(hf, "bos_token_id", 0),
        "eos_token_id": _id(hf, "eos_token_id", 2),
        "pad_token_id": _id(hf, "pad_token_id", 1),
        "decoder_start_token_id": _id(hf, "decoder_start_token_id", _id(hf, "bos_token_id", 0)),
    }
    fields.finish()
    return BartConfig(**config)


def _id(hf: dict[str, Any], name: str, default: int) -> int:
    value = hf.get(name)
    if isinstance(value, list):
        value = value[0]
    return default if value is None else value


class Norm(nn.LayerNorm):
    """Layer norm that first adds what the last sublayer left: (stream, delta) -> (stream + delta, normalized)."""

    def forward(self, x: Tensor, delta: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return add_layer_norm(x, delta, self.weight, self.bias, self.eps)


class FeedForward(nn.Module):
    def __init__(self, config: BartConfig):
        super().__init__()
        self.up = Linear(config.hidden_size, config.ffn_size)
        self.down = Linear(config.ffn_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Block(nn.Module):
    def __init__(self, config: BartConfig, layer: int):
        super().__init__()
        norm = lambda: Norm(config.hidden_size, eps=config.layer_norm_eps)  # noqa: E731
        self.self_norm, self.cross_norm, self.ffn_norm = norm(), norm(), norm()
        self.self_attention = SelfAttention(config.hidden_size, config.num_heads, layer)
        self.cross_attention = CrossAttention(config.hidden_size, config.num_heads, layer)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, delta: Tensor | None, rows: PagedRows) -> tuple[Tensor, Tensor]:
        """The residual stream and the last sublayer's output, not yet added: the next norm adds it in one pass."""
        x, y = self.self_norm(x, delta)
        x, y = self.cross_norm(x, self.self_attention(y, rows))
        x, y = self.ffn_norm(x, self.cross_attention(y, rows))
        return x, self.ffn(y)


class BartDecoder(nn.Module):
    """Token rows -> hidden rows -> logits."""

    def __init__(self, config: BartConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Embedding(config.max_positions + POSITION_OFFSET, config.hidden_size)
        self.embedding_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.num_layers))
        self.final_norm = Norm(config.hidden_size, eps=config.layer_norm_eps)
        if not config.tied:
            self.head = Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, token_ids: Tensor, rows: PagedRows) -> Tensor:
        """token_ids [R] at rows.positions [R] -> hidden [R, hidden_size], final norm applied."""
        x = self.embedding(token_ids) * self.config.embedding_scale
        x = self.embedding_norm(x + self.positions(rows.positions + POSITION_OFFSET))
        delta = None
        for block in self.blocks:
            x, delta = block(x, delta, rows)
        return self.final_norm(x, delta)[1]

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden_size] -> [R, vocab_size]"""
        return linear(hidden, self.embedding.weight if self.config.tied else self.head.weight)

    def write_cross_kv(self, features: Tensor, rows: PagedRows) -> None:
        """Encoder output [R, hidden_size], one row per (slot, position) -> every layer's cross K/V in the cache."""
        for block in self.blocks:
            block.cross_attention.write(features, rows)


def rules(config: BartConfig) -> list[Any]:
    """Weight rules for `MBartForCausalLM` (names without the role's prefix)."""
    d, layer = "model.decoder", "model.decoder.layers.{}"
    found = [
        Rename(f"{d}.embed_tokens.weight", "embedding.weight"),
        Rename(f"{d}.embed_positions.weight", "positions.weight"),
        _head(config),
    ]
    norms = {
        f"{d}.layernorm_embedding": "embedding_norm",
        f"{d}.layer_norm": "final_norm",
        f"{layer}.self_attn_layer_norm": "blocks.{}.self_norm",
        f"{layer}.encoder_attn_layer_norm": "blocks.{}.cross_norm",
        f"{layer}.final_layer_norm": "blocks.{}.ffn_norm",
    }
    linears = {
        f"{layer}.self_attn.out_proj": "blocks.{}.self_attention.out",
        f"{layer}.encoder_attn.q_proj": "blocks.{}.cross_attention.q",
        f"{layer}.encoder_attn.out_proj": "blocks.{}.cross_attention.out",
        f"{layer}.fc1": "blocks.{}.ffn.up",
        f"{layer}.fc2": "blocks.{}.ffn.down",
    }
    for kind in ("weight", "bias"):
        found += [Rename(f"{a}.{kind}", f"{b}.{kind}") for a, b in (norms | linears).items()]
        found.append(Fuse(f"{layer}.self_attn.{{q,k,v}}_proj.{kind}", f"blocks.{{}}.self_attention.qkv.{kind}"))
        found.append(Fuse(f"{layer}.encoder_attn.{{k,v}}_proj.{kind}", f"blocks.{{}}.cross_attention.kv.{kind}"))
    return found


def _head(config: BartConfig) -> Any:
    if not config.tied:
        return Rename("lm_head.weight", "head.weight")
    return Drop("lm_head.weight", "tied to the embedding", same_as="model.decoder.embed_tokens.weight", optional=True)


SPEC = ModelSpec("bart", BartConfig, parse, BartDecoder, rules)
