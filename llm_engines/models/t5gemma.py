"""T5Gemma: an encoder and a decoder of Gemma 2's shape (Zhang et al., arXiv:2504.06225; Gemma Team, arXiv:2408.00118).

RMS norms before and after each sublayer, rotary positions, gated GELU, scores and logits that are softly capped, and
self-attention within a sliding window in every other layer. The two sides may differ in size. The residual stream is
float32 whatever the engine's type.
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
from vlm.convert.rules import Apply, Fuse, Rename, Tied, is_tied
from vlm.layers.attention import CrossAttention, EncoderAttention, SelfAttention
from vlm.layers.blocks import Blocks
from vlm.layers.context import ModelContext
from vlm.layers.embedding import Embedding
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.heads import output_head
from vlm.layers.norm import RmsNorm
from vlm.layers.quant.producer import Producer
from vlm.layers.rotary import Rotary, RotaryConfig
from vlm.ops.attention_variant import AttentionVariant
from vlm.registry.spec import ModelSpec

HEAD, EMBEDDING = "lm_head.out_proj.weight", "model.decoder.embed_tokens.weight"


@dataclass(frozen=True)
class T5GemmaConfig(ModelConfig):
    """Holds the sizes of the encoder or of the decoder."""

    kv_heads: int
    head_size: int
    ffn_size: int
    cross_size: int  # width of the encoder's rows
    rotary: RotaryConfig
    reaches: tuple[int | None, ...]  # of each layer: how far its self-attention looks; None: at all rows
    attention_scale: float
    attention_softcap: float | None = 50.0
    logits_softcap: float | None = 30.0
    activation: str = "gelu_new"
    norm_eps: float = 1e-6
    tied: bool = True
    attention_bias: bool = False

    @property
    def head_dim(self) -> int:
        return self.head_size

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads

    @property
    def encoder_size(self) -> int:
        return self.cross_size


def parse_decoder(hf: dict[str, Any]) -> T5GemmaConfig:
    """Returns the T5GemmaConfig of a Hugging Face `t5gemma` configuration; ConfigError names every key that it cannot
    honour."""
    return _parse(hf, "decoder")


def parse_encoder(hf: dict[str, Any]) -> T5GemmaConfig:
    """Reads the encoder's configuration as `parse_decoder` does the decoder's."""
    return _parse(hf, "encoder")


def _parse(hf: dict[str, Any], side: str) -> T5GemmaConfig:
    own = hf.get(side) or {}
    reader = ConfigReader(own, f"T5Gemma {side}")
    config = sizes(hf, reader, vocab_size=256000, max_positions=8192)
    slides = reader.sliding_layers(config["num_layers"], lambda layer: layer % 2 == 0)
    # a decoder's window holds the token itself; an encoder's is as wide to each side, and holds it besides
    window = reader.size("sliding_window", 4096) - (side == "decoder")
    config |= {
        "cross_size": ConfigReader(hf.get("encoder") or {}, "T5Gemma encoder").size("hidden_size", 2304),
        "rotary": RotaryConfig.parse(own, config["head_size"], config["max_positions"]),
        "reaches": tuple(window if sliding else None for sliding in slides),
        "attention_softcap": own.get("attn_logit_softcapping", 50.0),
        "logits_softcap": own.get("final_logit_softcapping", 30.0),
    }
    reader.raise_errors()
    return T5GemmaConfig(**config)


def sizes(hf: dict[str, Any], reader: ConfigReader, *, vocab_size: int, max_positions: int) -> dict[str, Any]:
    """Reads what a side of a T5Gemma and of a T5Gemma 2 have in common; `vocab_size` and `max_positions` by default."""
    heads, kv_heads = reader.size("num_attention_heads", 8), reader.size("num_key_value_heads", 4)
    reader.multiple("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    return {
        "vocab_size": reader.size("vocab_size", vocab_size),
        "hidden_size": reader.size("hidden_size", 2304),
        "num_layers": reader.size("num_hidden_layers", 26),
        "num_heads": heads,
        "max_positions": reader.size("max_position_embeddings", max_positions),
        "kv_heads": kv_heads,
        "head_size": reader.size("head_dim", 256),
        "ffn_size": reader.size("intermediate_size", 9216),
        "attention_scale": reader.size("query_pre_attn_scalar", 256) ** -0.5,
        "activation": reader.activation("hidden_activation", "gelu_pytorch_tanh"),
        "norm_eps": reader.get("rms_norm_eps", 1e-6),
        "tied": bool(hf.get("tie_word_embeddings", True)),
        "attention_bias": bool(reader.get("attention_bias", False)),
        **token_ids(hf),
    }


def token_ids(hf: dict[str, Any]) -> dict[str, int]:
    """Reads the special tokens, which are the decoder's where the whole has none; an output starts from `bos`."""
    names = {"bos_token_id": 2, "pad_token_id": 0, "eos_token_id": 1}
    values = {name: (hf if name in hf else hf.get("decoder") or {}) for name in names}
    ids = {name: token_id(values[name], name, default) for name, default in names.items()}
    return ids | {"decoder_start_token_id": token_id(hf, "decoder_start_token_id", ids["bos_token_id"])}


def config_from_weights(config: T5GemmaConfig, tensors: Mapping[str, Tensor]) -> T5GemmaConfig:
    """Returns the configuration with what the weights say: whether the head is tied."""
    return dataclasses.replace(config, tied=config.tied and is_tied(HEAD, [EMBEDDING], tensors))


def norm(config: T5GemmaConfig) -> RmsNorm:
    return RmsNorm(config.hidden_size, config.norm_eps)


def ffn(config: T5GemmaConfig, context: ModelContext) -> FeedForward:
    return FeedForward(
        config.hidden_size, config.ffn_size, config.activation, gated=True, bias=False, out_fp32=True, context=context
    )


def _attention(config: T5GemmaConfig, context: ModelContext, reach: int | None) -> dict[str, Any]:
    """Returns what the attention layers have in common."""
    return {
        "head_dim": config.head_size,
        "num_kv_heads": config.kv_heads,
        "bias": config.attention_bias,
        "scale": config.attention_scale,
        "variant": AttentionVariant(config.attention_softcap, reach),
        "context": context,
    }


class EncoderBlock(nn.Module):
    def __init__(self, config: T5GemmaConfig, layer: int, context: ModelContext):
        super().__init__()
        self.attention_norm, self.attention_post_norm = norm(config), norm(config)
        self.ffn_norm, self.ffn_post_norm = norm(config), norm(config)
        self.producers = {"attention.qkv": Producer("attention_norm"), "ffn.up": Producer("ffn_norm")}
        kind = _attention(config, context, config.reaches[layer])
        self.attention = EncoderAttention(config.hidden_size, config.num_heads, **kind)
        self.ffn = ffn(config, context)

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the residual stream and the last sublayer's output, not yet added: the next norm adds it."""
        batch.record(x, delta)
        x, y = self.attention_norm(x, delta)
        y = self.attention_post_norm(self.attention(y, batch, angles=angles))[1]
        x, y = self.ffn_norm(x, y)
        return x, self.ffn_post_norm(self.ffn(y, batch))[1]


class DecoderBlock(nn.Module):
    def __init__(self, config: T5GemmaConfig, layer: int, context: ModelContext):
        super().__init__()
        self.self_norm, self.self_post_norm = norm(config), norm(config)
        self.cross_norm, self.cross_post_norm = norm(config), norm(config)
        self.ffn_norm, self.ffn_post_norm = norm(config), norm(config)
        self.producers = {
            "self_attention.qkv": Producer("self_norm"),
            "cross_attention.q": Producer("cross_norm"),
            "ffn.up": Producer("ffn_norm"),
        }
        sizes, kind = (config.hidden_size, config.num_heads, layer), _attention(config, context, config.reaches[layer])
        self.self_attention = SelfAttention(*sizes, **kind)
        kind = _attention(config, context, None)
        self.cross_attention = CrossAttention(*sizes, encoder_size=config.encoder_size, **kind)
        self.ffn = ffn(config, context)

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, angles: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.self_norm(x, delta)
        y = self.self_post_norm(self.self_attention(y, batch, angles=angles))[1]
        x, y = self.cross_norm(x, y)
        y = self.cross_post_norm(self.cross_attention(y, batch))[1]
        x, y = self.ffn_norm(x, y)
        return x, self.ffn_post_norm(self.ffn(y, batch))[1]


class Stack(nn.Module):
    """Computes what encoder and decoder share: all but the head."""

    def __init__(self, config: T5GemmaConfig, block: Callable[[int], nn.Module], *, tied: bool, context: ModelContext):
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.embedding = Embedding(config.vocab_size, width, width**0.5, context=context, tied=tied)
        self.rotary = Rotary(config.rotary)
        self.blocks, self.final_norm = Blocks(config.num_layers, block, context=context), norm(config)

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the configuration and is not stored."""
        self.rotary.init_buffers(device)

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps token_ids [R] -> hidden [R, hidden_size], final norm applied"""
        x = self.embedding(token_ids, batch, dtype=torch.float32)
        x, delta = self.blocks(x, batch, self.rotary(batch.positions))
        return self.final_norm(x, delta)[1]


class T5GemmaEncoder(Stack):
    """Turns token rows of packed sequences into hidden rows."""

    def __init__(self, config: T5GemmaConfig, context: ModelContext):
        super().__init__(config, lambda i: EncoderBlock(config, i, context), tied=False, context=context)
        self.stages = context.stages

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        return self.stages.from_last(super().forward(token_ids, batch))


class T5GemmaDecoder(Stack):
    """Turns token rows into hidden rows, and these into logits."""

    def __init__(self, config: T5GemmaConfig, context: ModelContext):
        super().__init__(config, lambda i: DecoderBlock(config, i, context), tied=config.tied, context=context)
        self.head = output_head(self.embedding, tied=config.tied, context=context)

    def logits(self, hidden: Tensor, batch: ForwardBatch | None = None) -> Tensor:
        """Maps hidden [R, hidden_size] -> [R, vocab_size]"""
        return AttentionVariant(self.config.logits_softcap).capped(self.head(hidden, batch))

    def write_cross_kv(self, features: Tensor, batch: ForwardBatch) -> None:
        """Puts every layer's keys and values of an encoder's output [R, encoder_size] into the cache."""
        for block in cast("Iterable[DecoderBlock]", self.blocks):
            block.cross_attention.write(features, batch)


def encoder_rules(config: T5GemmaConfig) -> list[Any]:
    """Returns weight rules for the encoder of `T5GemmaForConditionalGeneration` (names without `model.encoder.`)."""
    sublayers = {"self_attn": "attention", "feedforward": "ffn"}
    embedding = Rename("embed_tokens.weight", "embedding.weight")
    return [
        embedding,
        *stack_rules("", sublayers),
        *projections("", "self_attn", "attention", bias=config.attention_bias),
    ]


def decoder_rules(config: T5GemmaConfig) -> list[Any]:
    """Returns weight rules for all else."""
    d, sublayers = "model.decoder.", {"self_attn": "self", "cross_attn": "cross", "feedforward": "ffn"}
    cross, ours = f"{d}layers.{{}}.cross_attn", "blocks.{}.cross_attention"
    head = [] if config.tied else [Rename(HEAD, "head.weight")]
    weight_rules = [
        Tied(EMBEDDING, "embedding.weight", also=(HEAD,) if config.tied else ()),
        *head,
        *stack_rules(d, sublayers),
        *projections(d, "self_attn", "self_attention", bias=config.attention_bias),
    ]
    for kind in _kinds(bias=config.attention_bias):
        weight_rules += [
            Rename(f"{cross}.q_proj.{kind}", f"{ours}.q.{kind}"),
            Fuse(f"{cross}.{{k,v}}_proj.{kind}", f"{ours}.kv.{kind}"),
            Rename(f"{cross}.o_proj.{kind}", f"{ours}.out.{kind}"),
        ]
    return weight_rules


def stack_rules(prefix: str, sublayers: Mapping[str, str]) -> list[Any]:
    """Returns rules for norms and feed-forward layers; `sublayers`: how norms are called, theirs -> ours."""
    layer = f"{prefix}layers.{{}}"
    norms = {f"{prefix}norm": "final_norm"}
    for theirs, ours in sublayers.items():
        norms[f"{layer}.pre_{theirs}_layernorm"] = f"blocks.{{}}.{ours}_norm"
        norms[f"{layer}.post_{theirs}_layernorm"] = f"blocks.{{}}.{ours}_post_norm"
    return [
        *(norm_rule(f"{a}.weight", f"{b}.weight") for a, b in norms.items()),
        Fuse(f"{layer}.mlp.{{gate,up}}_proj.weight", "blocks.{}.ffn.up.weight"),
        Rename(f"{layer}.mlp.down_proj.weight", "blocks.{}.ffn.down.weight"),
    ]


def norm_rule(theirs: str, ours: str) -> Apply:
    return Apply(theirs, ours, lambda x: x.float() + 1, "saved as distances from 1")


def projections(prefix: str, theirs: str, ours: str, *, bias: bool) -> list[Any]:
    """Returns rules for a side's self-attention."""
    layer, mine = f"{prefix}layers.{{}}.{theirs}", f"blocks.{{}}.{ours}"
    return [
        rule
        for kind in _kinds(bias=bias)
        for rule in (
            Fuse(f"{layer}.{{q,k,v}}_proj.{kind}", f"{mine}.qkv.{kind}"),
            Rename(f"{layer}.o_proj.{kind}", f"{mine}.out.{kind}"),
        )
    ]


def _kinds(*, bias: bool) -> tuple[str, ...]:
    return ("weight", "bias") if bias else ("weight",)


SPEC = ModelSpec("t5gemma", T5GemmaConfig, parse_decoder, T5GemmaDecoder, decoder_rules, config_from_weights)
ENCODER_SPEC = ModelSpec("t5gemma-encoder", T5GemmaConfig, parse_encoder, T5GemmaEncoder, encoder_rules)
