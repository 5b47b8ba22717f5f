"""T5: T5 v1.0 and v1.1, Flan-T5, mT5, UMT5, ByT5, UL2 and Flan-UL2; NeMo's T5, which may differ in its parts.

Raffel et al. (arXiv:1910.10683). RMS norm before each sublayer, no biases, attention scores unscaled and with a
relative position bias that the first layer's table gives to all; in UMT5 each layer has one. The residual stream and
the feed-forward's output are float32 whatever the engine's type: Flan-T5 leaves the range of float16 there.

NeMo's may have layer norms, biases, scaled scores and learned positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from vlm.config import ModelConfig
from vlm.convert.config_reader import ConfigReader, token_id
from vlm.convert.rules import Drop, Fuse, Rename, Tied, is_tied
from vlm.errors import shown
from vlm.layers.attention import CrossAttention, EncoderAttention, SelfAttention
from vlm.layers.blocks import Blocks
from vlm.layers.context import ModelContext
from vlm.layers.embedding import Embedding
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.heads import output_head
from vlm.layers.norm import LayerNorm, RmsNorm
from vlm.layers.quant.producer import Producer
from vlm.layers.relative_bias import RelativeBias
from vlm.registry.spec import ModelSpec

EMBEDDINGS = ("shared.weight", "decoder.embed_tokens.weight", "encoder.embed_tokens.weight")
DEFAULT_LENGTH = 512  # tokens; a limit of memory alone, positions are relative


@dataclass(frozen=True)
class T5Config(ModelConfig):
    """Holds the sizes of the encoder or of the decoder."""

    d_kv: int
    ffn_size: int
    activation: str
    gated: bool
    num_buckets: int = 32
    max_distance: int = 128
    norm_eps: float = 1e-6
    tied: bool = True
    scaled_head: bool = True  # logits of hidden / sqrt(d_model)
    layer_norm: bool = False  # else RMS norms
    bias: bool = False  # of every product within the blocks
    learned_positions: bool = False  # else relative ones
    bias_every_layer: bool = False  # a table of relative positions, else one for all
    attention_scale: float = 1.0
    logits_bias: bool = False

    @property
    def head_dim(self) -> int:
        return self.d_kv

    @property
    def position_limit(self) -> int | None:
        return self.max_positions if self.learned_positions else None


# transformers' configuration_t5.py and configuration_mt5.py
ALIASES = {"hidden_size": "d_model", "num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
           "head_dim": "d_kv"}  # fmt: skip


def parse_decoder(hf: dict[str, Any]) -> T5Config:
    """Returns the T5Config of a Hugging Face `t5`, `mt5` or `umt5` configuration; ConfigError names every key that it
    cannot honour."""
    return _parse(hf, "num_decoder_layers")


def parse_encoder(hf: dict[str, Any]) -> T5Config:
    """Returns the same as `parse_decoder`, with the encoder's number of layers."""
    return _parse(hf, "num_layers")


def _parse(hf: dict[str, Any], layers: str) -> T5Config:
    reader = ConfigReader(hf, "T5", ALIASES)
    kind = reader.choice("model_type", ["t5", "mt5", "umt5"])
    multilingual = kind != "t5"
    activation, gated = _feed_forward(reader, "gated-gelu" if multilingual else "relu")
    # v1.1 and UMT5 say that the head is not tied, and mean that logits are not scaled; the weights say whether it is
    scaled = hf.get("scale_decoder_outputs", hf.get("tie_word_embeddings") is not False)
    pad = token_id(hf, "pad_token_id", 0)
    config = {
        "vocab_size": reader.size("vocab_size", 250112 if multilingual else 32128),
        "hidden_size": reader.size("d_model", 512),
        "num_layers": reader.size(layers, reader.size("num_layers", 8 if multilingual else 6)),
        "num_heads": reader.size("num_heads", 6 if multilingual else 8),
        "max_positions": hf.get("n_positions") or DEFAULT_LENGTH,
        "d_kv": reader.size("d_kv", 64),
        "ffn_size": reader.size("d_ff", 1024 if multilingual else 2048),
        "activation": activation,
        "gated": gated,
        "num_buckets": num_buckets(reader),
        "max_distance": reader.size("relative_attention_max_distance", 128),
        "norm_eps": reader.get("layer_norm_epsilon", 1e-6),
        "scaled_head": bool(scaled) and kind != "mt5",
        "bias_every_layer": kind == "umt5",
        "bos_token_id": token_id(hf, "bos_token_id", pad),
        "eos_token_id": token_id(hf, "eos_token_id", 1),
        "pad_token_id": pad,
        "decoder_start_token_id": token_id(hf, "decoder_start_token_id", pad),
    }
    reader.raise_errors()
    return T5Config(**config)


def num_buckets(reader: ConfigReader) -> int:
    """Reads how many buckets distances have."""
    count = reader.size("relative_attention_num_buckets", 32)
    if count < 4:
        reader.errors.append(f"relative_attention_num_buckets is {count}, it must be at least 4")
    return count


def _feed_forward(reader: ConfigReader, default: str) -> tuple[str, bool]:
    """Returns the activation, by our name, and whether it is gated: from `feed_forward_proj`, and from what a saved
    configuration says in words of its own, which prevails."""
    kind = str(reader.get("feed_forward_proj", default))
    first, _, last = kind.rpartition("-")
    if first not in ("", "gated"):
        reader.errors.append(
            f"feed_forward_proj is {shown(kind)}, supported is 'gated-' and an activation, or that alone"
        )
    if "dense_act_fn" not in reader.values:
        reader.values["dense_act_fn"] = "gelu_new" if kind == "gated-gelu" else last
    return reader.activation("dense_act_fn", "relu"), bool(reader.get("is_gated_act", first == "gated"))


def config_from_weights(config: T5Config, tensors: Mapping[str, Tensor]) -> T5Config:
    """Returns the configuration with what the weights say of the head, whatever the configuration says."""
    return dataclasses.replace(config, tied=is_tied("lm_head.weight", EMBEDDINGS, tensors))


def _norm(config: T5Config) -> RmsNorm | LayerNorm:
    return (LayerNorm if config.layer_norm else RmsNorm)(config.hidden_size, config.norm_eps)


def _ffn(config: T5Config, context: ModelContext) -> FeedForward:
    return FeedForward(
        config.hidden_size, config.ffn_size, config.activation, gated=config.gated, bias=config.bias, out_fp32=True,
        context=context,
    )  # fmt: skip


def _relative_bias(config: T5Config, context: ModelContext, *, bidirectional: bool) -> RelativeBias:
    sizes = (config.num_buckets, config.max_distance, config.num_heads)
    return RelativeBias(*sizes, bidirectional=bidirectional, context=context)


def _attention(config: T5Config, context: ModelContext) -> dict[str, Any]:
    """Returns what the attention layers of a block have in common."""
    return {"head_dim": config.d_kv, "bias": config.bias, "scale": config.attention_scale, "context": context}


class EncoderBlock(nn.Module):
    def __init__(self, config: T5Config, context: ModelContext):
        super().__init__()
        self.attention_norm, self.ffn_norm = _norm(config), _norm(config)
        self.producers = {"attention.qkv": Producer("attention_norm"), "ffn.up": Producer("ffn_norm")}
        self.attention = EncoderAttention(config.hidden_size, config.num_heads, **_attention(config, context))
        self.ffn = _ffn(config, context)
        self.relative_bias = _relative_bias(config, context, bidirectional=True) if config.bias_every_layer else None

    def forward(
        self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Returns the residual stream and the last sublayer's output, not yet added: the next norm adds it."""
        batch.record(x, delta)
        bias = bias if self.relative_bias is None else self.relative_bias.by_distance
        x, y = self.attention_norm(x, delta)
        x, y = self.ffn_norm(x, self.attention(y, batch, bias))
        return x, self.ffn(y, batch)


class DecoderBlock(nn.Module):
    def __init__(self, config: T5Config, layer: int, context: ModelContext):
        super().__init__()
        self.self_norm, self.cross_norm, self.ffn_norm = _norm(config), _norm(config), _norm(config)
        self.producers = {
            "self_attention.qkv": Producer("self_norm"),
            "cross_attention.q": Producer("cross_norm"),
            "ffn.up": Producer("ffn_norm"),
        }
        kind = _attention(config, context)
        self.self_attention = SelfAttention(config.hidden_size, config.num_heads, layer, **kind)
        self.cross_attention = CrossAttention(config.hidden_size, config.num_heads, layer, **kind)
        self.ffn = _ffn(config, context)
        self.relative_bias = _relative_bias(config, context, bidirectional=False) if config.bias_every_layer else None

    def forward(
        self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        bias = bias if self.relative_bias is None else self.relative_bias.by_distance
        x, y = self.self_norm(x, delta)
        x, y = self.cross_norm(x, self.self_attention(y, batch, bias=bias))
        x, y = self.ffn_norm(x, self.cross_attention(y, batch))
        return x, self.ffn(y, batch)


class Stack(nn.Module):
    """Computes what encoder and decoder share: all but the head."""

    def __init__(
        self, config: T5Config, block: Callable[[int], nn.Module], *, bidirectional: bool, context: ModelContext
    ):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.hidden_size, context=context, tied=config.tied)
        if config.learned_positions:
            self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        elif not config.bias_every_layer:
            self.relative_bias = _relative_bias(config, context, bidirectional=bidirectional)
        self.blocks, self.final_norm = Blocks(config.num_layers, block, context=context), _norm(config)

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the weights and is not stored."""
        for module in self.modules():
            if isinstance(module, RelativeBias):
                module.init_buffers(device)

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps token_ids [R] -> hidden [R, hidden_size], final norm applied"""
        x, bias = self.embedding(token_ids, batch, dtype=torch.float32), None
        if self.config.learned_positions:
            x = x + self.positions(batch.positions)
        elif not self.config.bias_every_layer:
            bias = self.relative_bias.by_distance
        x, delta = self.blocks(x, batch, bias)
        return self.final_norm(x, delta)[1]


class T5Encoder(Stack):
    """Turns token rows of packed sequences into hidden rows."""

    def __init__(self, config: T5Config, context: ModelContext):
        super().__init__(config, lambda _: EncoderBlock(config, context), bidirectional=True, context=context)
        self.stages = context.stages

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        return self.stages.from_last(super().forward(token_ids, batch))


class T5Decoder(Stack):
    """Turns token rows into hidden rows, and these into logits."""

    def __init__(self, config: T5Config, context: ModelContext):
        super().__init__(config, lambda i: DecoderBlock(config, i, context), bidirectional=False, context=context)
        self.head = output_head(self.embedding, tied=config.tied, context=context)
        if config.logits_bias:
            self.logits_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def logits(self, hidden: Tensor, batch: ForwardBatch | None = None) -> Tensor:
        """Maps hidden [R, hidden_size] -> [R, vocab_size]"""
        if self.config.scaled_head:
            hidden = hidden * self.config.hidden_size**-0.5
        return self.head(hidden, batch, self.logits_bias if self.config.logits_bias else None)

    def write_cross_kv(self, features: Tensor, batch: ForwardBatch) -> None:
        """Puts every layer's keys and values of an encoder's output [R, hidden_size] into the cache."""
        for block in cast("Iterable[DecoderBlock]", self.blocks):
            block.cross_attention.write(features, batch)


def encoder_rules(config: T5Config) -> list[Any]:
    """Returns weight rules for the encoder of `T5ForConditionalGeneration` (names without `encoder.`)."""
    weight_rules = _stack_rules("", {"0.SelfAttention": "attention"}, config)
    others = ("shared.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    return [*weight_rules, Tied("embed_tokens.weight", "embedding.weight", also=others)]


def decoder_rules(config: T5Config) -> list[Any]:
    """Returns weight rules for all else."""
    d, cross = "decoder.", "decoder.block.{}.layer.1.EncDecAttention"
    weight_rules = _stack_rules(d, {"0.SelfAttention": "self_attention"}, config)
    head = ("lm_head.weight",) if config.tied else ()
    weight_rules += [
        Rename(f"{cross}.q.weight", "blocks.{}.cross_attention.q.weight"),
        Fuse(f"{cross}.{{k,v}}.weight", "blocks.{}.cross_attention.kv.weight"),
        Rename(f"{cross}.o.weight", "blocks.{}.cross_attention.out.weight"),
        Rename(f"{d}block.{{}}.layer.1.layer_norm.weight", "blocks.{}.cross_norm.weight"),
        Drop(f"{cross}.relative_attention_bias.weight", "a relic: cross-attention has no bias", optional=True),
        Tied("decoder.embed_tokens.weight", "embedding.weight", also=("shared.weight", EMBEDDINGS[2], *head)),
    ]
    return weight_rules if config.tied else [*weight_rules, Rename("lm_head.weight", "head.weight")]


def _stack_rules(prefix: str, attention: dict[str, str], config: T5Config) -> list[Any]:
    [(theirs, ours)] = attention.items()
    block, last = f"{prefix}block.{{}}.layer", 2 if prefix else 1
    ffn = f"{block}.{last}.DenseReluDense"
    up = Fuse(f"{ffn}.{{wi_0,wi_1}}.weight", "blocks.{}.ffn.up.weight")
    return [
        Fuse(f"{block}.{theirs}.{{q,k,v}}.weight", f"blocks.{{}}.{ours}.qkv.weight"),
        Rename(f"{block}.{theirs}.o.weight", f"blocks.{{}}.{ours}.out.weight"),
        _bias_rule(f"{prefix}block.{{}}.layer.{theirs}.relative_attention_bias.weight", config),
        Rename(f"{block}.0.layer_norm.weight", f"blocks.{{}}.{'self' if prefix else 'attention'}_norm.weight"),
        up if config.gated else Rename(f"{ffn}.wi.weight", "blocks.{}.ffn.up.weight"),
        Rename(f"{ffn}.wo.weight", "blocks.{}.ffn.down.weight"),
        Rename(f"{block}.{last}.layer_norm.weight", "blocks.{}.ffn_norm.weight"),
        Rename(f"{prefix}final_layer_norm.weight", "final_norm.weight"),
    ]


def _bias_rule(name: str, config: T5Config) -> Rename:
    if config.bias_every_layer:
        return Rename(name, "blocks.{}.relative_bias.weight")
    return Rename(name.format(0), "relative_bias.weight")


SPEC = ModelSpec("t5", T5Config, parse_decoder, T5Decoder, decoder_rules, config_from_weights)
ENCODER_SPEC = ModelSpec("t5-encoder", T5Config, parse_encoder, T5Encoder, encoder_rules)
