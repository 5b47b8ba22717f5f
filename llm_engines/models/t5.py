"""T5: T5 v1.0 and v1.1, Flan-T5, mT5, ByT5, UL2 and Flan-UL2.

Raffel et al. (arXiv:1910.10683). RMS norm before each sublayer, no biases, attention scores unscaled and with a
relative position bias that the first layer's table gives to all. The residual stream and the feed-forward's output are
float32 whatever the engine's type: Flan-T5 leaves the range of float16 there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vlm.config import ModelConfig
from vlm.convert import Drop, Fuse, Rename, Tied
from vlm.foreign_config import ForeignConfig, token_id
from vlm.layers.attention import CrossAttention, EncoderAttention, PackedRows, PagedRows, SelfAttention
from vlm.layers.embedding import Embedding
from vlm.layers.linear import Linear
from vlm.layers.norm import RmsNorm
from vlm.layers.relative_bias import RelativeBias
from vlm.ops.gated import ACTIVATIONS, gated
from vlm.ops.linear import linear
from vlm.registry import ModelSpec

DEFAULT_LENGTH = 512  # tokens; a limit of memory alone, positions are relative


@dataclass(frozen=True)
class T5Config(ModelConfig):
    """Of the encoder or of the decoder."""

    d_kv: int
    ffn_size: int
    activation: str
    gated: bool
    num_buckets: int = 32
    max_distance: int = 128
    norm_eps: float = 1e-6
    tied: bool = True
    scaled_head: bool = True  # logits of hidden / sqrt(d_model)

    @property
    def head_dim(self) -> int:
        return self.d_kv

    @property
    def position_limit(self) -> None:
        return None


def parse_decoder(hf: dict[str, Any]) -> T5Config:
    """A Hugging Face `t5` or `mt5` configuration -> T5Config; ConfigError names every field it cannot honour."""
    return _parse(hf, hf.get("num_decoder_layers") or hf.get("num_layers", 6))


def parse_encoder(hf: dict[str, Any]) -> T5Config:
    """As `parse_decoder`, with the encoder's number of layers."""
    return _parse(hf, hf.get("num_layers", 6))


def _parse(hf: dict[str, Any], num_layers: int) -> T5Config:
    fields = ForeignConfig(hf, "T5")
    multilingual = fields.allow("model_type", ["t5", "mt5"]) == "mt5"
    fields.ignore("dropout_rate", "classifier_dropout", "initializer_factor", "num_layers", "num_decoder_layers")
    fields.ignore("output_past", "dense_act_fn", "is_gated_act", "scale_decoder_outputs", "n_positions", "d_inner")
    kind = fields.take("feed_forward_proj", "gated-gelu" if multilingual else "relu")
    kinds = {f"{prefix}{name}": name for name in ACTIVATIONS for prefix in ("", "gated-")} | {"gated-gelu": "gelu_new"}
    if kind not in kinds:
        fields.wrong.append(f"feed_forward_proj is {kind!r}, supported is {', '.join(kinds)}")
    # a configuration saved by transformers 5 ties always and says apart whether the head is scaled
    scaled = hf.get("scale_decoder_outputs", hf.get("tie_word_embeddings", True) is not False)
    pad = token_id(hf, "pad_token_id", 0)
    config = {
        "vocab_size": fields.take("vocab_size", 250112 if multilingual else 32128),
        "hidden_size": fields.take("d_model", 512),
        "num_layers": num_layers,
        "num_heads": fields.take("num_heads", 6 if multilingual else 8),
        "max_positions": hf.get("n_positions") or DEFAULT_LENGTH,
        "d_kv": fields.take("d_kv", 64),
        "ffn_size": fields.take("d_ff", 1024 if multilingual else 2048),
        "activation": kinds.get(kind, "relu"),
        "gated": str(kind).startswith("gated-"),
        "num_buckets": fields.take("relative_attention_num_buckets", 32),
        "max_distance": fields.take("relative_attention_max_distance", 128),
        "norm_eps": fields.take("layer_norm_epsilon", 1e-6),
        "scaled_head": bool(scaled) and not multilingual,
        "tied": hf.get("tie_word_embeddings", not multilingual) is not False,
        "bos_token_id": token_id(hf, "bos_token_id", pad),
        "eos_token_id": token_id(hf, "eos_token_id", 1),
        "pad_token_id": pad,
        "decoder_start_token_id": token_id(hf, "decoder_start_token_id", pad),
    }
    fields.finish()
    return T5Config(**config)


def adapt(config: T5Config, tensors: Mapping[str, Tensor]) -> T5Config:
    """Whether the head is tied is what the weights say: transformers 5 writes `tie_word_embeddings: true` always."""
    head, shared = (tensors.get(name) for name in ("lm_head.weight", "shared.weight"))
    tied = head is None or (shared is not None and torch.equal(head, shared))
    return dataclasses.replace(config, tied=tied)


def _norm(config: T5Config) -> RmsNorm:
    return RmsNorm(config.hidden_size, config.norm_eps)


class FeedForward(nn.Module):
    def __init__(self, config: T5Config):
        super().__init__()
        self.gated, self.activation = config.gated, config.activation
        self.up = Linear(config.hidden_size, config.ffn_size * (2 if config.gated else 1), bias=False)
        self.down = Linear(config.ffn_size, config.hidden_size, bias=False, wide=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        return self.down(gated(x, self.activation) if self.gated else ACTIVATIONS[self.activation](x))


class EncoderBlock(nn.Module):
    def __init__(self, config: T5Config):
        super().__init__()
        self.attention_norm, self.ffn_norm = _norm(config), _norm(config)
        self.attention = EncoderAttention(config.hidden_size, config.num_heads, config.d_kv, bias=False, scale=1.0)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, delta: Tensor | None, rows: PackedRows, bias: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream and the last sublayer's output, not yet added: the next norm adds it in one pass."""
        rows.note(x, delta)
        x, y = self.attention_norm(x, delta)
        x, y = self.ffn_norm(x, self.attention(y, rows, bias))
        return x, self.ffn(y)


class DecoderBlock(nn.Module):
    def __init__(self, config: T5Config, layer: int):
        super().__init__()
        self.self_norm, self.cross_norm, self.ffn_norm = _norm(config), _norm(config), _norm(config)
        size = (config.hidden_size, config.num_heads, layer, config.d_kv)
        self.self_attention = SelfAttention(*size, bias=False, scale=1.0)
        self.cross_attention = CrossAttention(*size, bias=False, scale=1.0)
        self.ffn = FeedForward(config)

    def forward(self, x: Tensor, delta: Tensor | None, rows: PagedRows, bias: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.self_norm(x, delta)
        x, y = self.cross_norm(x, self.self_attention(y, rows, bias))
        x, y = self.ffn_norm(x, self.cross_attention(y, rows))
        return x, self.ffn(y)


class Stack(nn.Module):
    """What encoder and decoder share."""

    def __init__(self, config: T5Config, blocks: list[nn.Module], bidirectional: bool):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.hidden_size)
        self.relative_bias = RelativeBias(config.num_buckets, config.max_distance, config.num_heads, bidirectional)
        self.blocks, self.final_norm = nn.ModuleList(blocks), _norm(config)

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the weights and is not stored."""
        self.relative_bias.init_buffers(device)

    def forward(self, token_ids: Tensor, rows: PackedRows | PagedRows) -> Tensor:
        """token_ids [R] -> hidden [R, hidden_size], final norm applied"""
        x, delta = self.embedding(token_ids, rows.virtual).float(), None
        for block in self.blocks:
            x, delta = block(x, delta, rows, self.relative_bias.by_distance)
        return self.final_norm(x, delta)[1]


class T5Encoder(Stack):
    """Token rows of packed sequences -> hidden rows."""

    def __init__(self, config: T5Config):
        super().__init__(config, [EncoderBlock(config) for _ in range(config.num_layers)], bidirectional=True)


class T5Decoder(Stack):
    """Token rows -> hidden rows -> logits."""

    def __init__(self, config: T5Config):
        super().__init__(config, [DecoderBlock(config, i) for i in range(config.num_layers)], bidirectional=False)
        if not config.tied:
            self.head = Linear(config.hidden_size, config.vocab_size, bias=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, hidden_size] -> [R, vocab_size]"""
        if self.config.scaled_head:
            hidden = hidden * self.config.hidden_size**-0.5
        return linear(hidden, self.embedding.weight if self.config.tied else self.head.weight)

    def write_cross_kv(self, features: Tensor, rows: PagedRows) -> None:
        """Encoder output [R, hidden_size], one row per (slot, position) -> every layer's cross K/V in the cache."""
        for block in self.blocks:
            block.cross_attention.write(features, rows)


def encoder_rules(config: T5Config) -> list[Any]:
    """Weight rules for the encoder of `T5ForConditionalGeneration` (names without `encoder.`)."""
    found = _stack_rules("", {"0.SelfAttention": "attention"}, config)
    return [*found, Tied("shared.weight", "embedding.weight", also=("embed_tokens.weight",))]


def decoder_rules(config: T5Config) -> list[Any]:
    """Weight rules for all else."""
    d, cross = "decoder.", "decoder.block.{}.layer.1.EncDecAttention"
    found = _stack_rules(d, {"0.SelfAttention": "self_attention"}, config)
    head = ("lm_head.weight",) if config.tied else ()
    found += [
        Rename(f"{cross}.q.weight", "blocks.{}.cross_attention.q.weight"),
        Fuse(f"{cross}.{{k,v}}.weight", "blocks.{}.cross_attention.kv.weight"),
        Rename(f"{cross}.o.weight", "blocks.{}.cross_attention.out.weight"),
        Rename(f"{d}block.{{}}.layer.1.layer_norm.weight", "blocks.{}.cross_norm.weight"),
        Drop(f"{cross}.relative_attention_bias.weight", "a relic: cross-attention has no bias", optional=True),
        Tied("shared.weight", "embedding.weight", also=("decoder.embed_tokens.weight", *head)),
    ]
    return found if config.tied else [*found, Rename("lm_head.weight", "head.weight")]


def _stack_rules(prefix: str, attention: dict[str, str], config: T5Config) -> list[Any]:
    [(theirs, ours)] = attention.items()
    block, last = f"{prefix}block.{{}}.layer", 2 if prefix else 1
    ffn = f"{block}.{last}.DenseReluDense"
    up = Fuse(f"{ffn}.{{wi_0,wi_1}}.weight", "blocks.{}.ffn.up.weight")
    return [
        Fuse(f"{block}.{theirs}.{{q,k,v}}.weight", f"blocks.{{}}.{ours}.qkv.weight"),
        Rename(f"{block}.{theirs}.o.weight", f"blocks.{{}}.{ours}.out.weight"),
        Rename(f"{prefix}block.0.layer.{theirs}.relative_attention_bias.weight", "relative_bias.weight"),
        Rename(f"{block}.0.layer_norm.weight", f"blocks.{{}}.{'self' if prefix else 'attention'}_norm.weight"),
        up if config.gated else Rename(f"{ffn}.wi.weight", "blocks.{}.ffn.up.weight"),
        Rename(f"{ffn}.wo.weight", "blocks.{}.ffn.down.weight"),
        Rename(f"{block}.{last}.layer_norm.weight", "blocks.{}.ffn_norm.weight"),
        Rename(f"{prefix}final_layer_norm.weight", "final_norm.weight"),
    ]


SPEC = ModelSpec("t5", T5Config, parse_decoder, T5Decoder, decoder_rules, adapt)
ENCODER_SPEC = ModelSpec("t5-encoder", T5Config, parse_encoder, T5Encoder, encoder_rules)
