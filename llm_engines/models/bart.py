"""BART-shaped encoders and decoders: BART, mBART and mBART-50, M2M100 and NLLB-200, Marian, PEGASUS, TrOCR's decoders,
FairSeq's transformers for translation.

Lewis et al., BART (arXiv:1910.13461); Liu et al., mBART (arXiv:2001.08210); Fan et al., M2M-100 (arXiv:2010.11125);
NLLB Team (arXiv:2207.04672); Junczys-Dowmunt et al., Marian (arXiv:1804.00344); Zhang et al., PEGASUS
(arXiv:1912.08777); Li et al., TrOCR (arXiv:2109.10282); Vaswani et al. (arXiv:1706.03762). BART, Marian and TrOCR
normalize after each sublayer; the others before it, and once more after the last. BART, mBART and most of TrOCR learn
positions, which start at row 2; all others compute them from
sines.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from llm_engines.models.bart_config import BartConfig, parse_decoder, parse_encoder
from vlm.convert.rules import Apply, Drop, Fuse, Rename, Tied, is_tied
from vlm.layers.attention import CrossAttention, EncoderAttention, SelfAttention
from vlm.layers.blocks import Blocks
from vlm.layers.context import ModelContext
from vlm.layers.embedding import Embedding
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.heads import output_head
from vlm.layers.norm import LayerNorm
from vlm.layers.quant.producer import Producer
from vlm.registry.spec import ModelSpec

EMBEDDINGS = ("model.shared.weight", "model.decoder.embed_tokens.weight", "model.encoder.embed_tokens.weight")
# of transformers' first releases: which FairSeq wrote it, and positions that were computed
RELICS = ("version", "embed_positions._float_tensor")


def config_from_weights(config: BartConfig, tensors: Mapping[str, Tensor]) -> BartConfig:
    """Returns the configuration with what the weights say: whether the head is tied, and whether a bias of the logits
    is one (published checkpoints hold zeros)."""
    bias = tensors.get("final_logits_bias")
    return dataclasses.replace(
        with_stored_positions(config, tensors),
        tied=config.tied and is_tied(f"{config.head_name}.weight", _embeddings(config), tensors),
        logits_bias=bias is not None and bool(bias.float().any()),
    )


def with_stored_positions(config: BartConfig, tensors: Mapping[str, Tensor]) -> BartConfig:
    """Returns the configuration for positions as they were saved, where Marian's and PEGASUS's were: they are sines,
    too, but counted by another program, or rounded."""
    stored = any(name.endswith("embed_positions.weight") for name in tensors)
    return dataclasses.replace(config, sinusoidal=config.sinusoidal and not stored)


def _embeddings(config: BartConfig) -> tuple[str, ...]:
    """Returns the names that the decoder's embedding may have."""
    return EMBEDDINGS if config.shared_embeddings else EMBEDDINGS[1:2]


class EncoderBlock(nn.Module):
    def __init__(self, config: BartConfig, context: ModelContext):
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention_norm, self.ffn_norm = _norm(config), _norm(config)
        norms = {"attention.qkv": Producer("attention_norm"), "ffn.up": Producer("ffn_norm")}
        self.producers = norms if config.pre_norm else {}  # the residual stream reads a norm that comes after
        self.attention = EncoderAttention(config.hidden_size, config.num_heads, context=context)
        self.ffn = FeedForward(config.hidden_size, config.ffn_size, config.activation, context=context)

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        """Returns the residual stream and, where norms come first, the last sublayer's output, not yet added: the next
        norm adds it in one pass."""
        batch.record(x, delta)
        if self.pre_norm:
            x, y = self.attention_norm(x, delta)
            x, y = self.ffn_norm(x, self.attention(y, batch))
            return x, self.ffn(y, batch)
        x = self.attention_norm.of_sum(x, self.attention(x, batch))
        return self.ffn_norm.of_sum(x, self.ffn(x, batch)), None


class DecoderBlock(nn.Module):
    def __init__(self, config: BartConfig, layer: int, context: ModelContext):
        super().__init__()
        self.pre_norm = config.pre_norm
        self.self_norm, self.cross_norm, self.ffn_norm = _norm(config), _norm(config), _norm(config)
        norms = {
            "self_attention.qkv": Producer("self_norm"),
            "cross_attention.q": Producer("cross_norm"),
            "ffn.up": Producer("ffn_norm"),
        }
        self.producers = norms if config.pre_norm else {}
        self.self_attention = SelfAttention(config.hidden_size, config.num_heads, layer, context=context)
        self.cross_attention = CrossAttention(
            config.hidden_size, config.num_heads, layer, context=context, encoder_size=config.encoder_size
        )
        self.ffn = FeedForward(config.hidden_size, config.ffn_size, config.activation, context=context)

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        if self.pre_norm:
            x, y = self.self_norm(x, delta)
            x, y = self.cross_norm(x, self.self_attention(y, batch))
            x, y = self.ffn_norm(x, self.cross_attention(y, batch))
            return x, self.ffn(y, batch)
        x = self.self_norm.of_sum(x, self.self_attention(x, batch))
        x = self.cross_norm.of_sum(x, self.cross_attention(x, batch))
        return self.ffn_norm.of_sum(x, self.ffn(x, batch)), None


def _norm(config: BartConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, eps=config.layer_norm_eps)


class Stack(nn.Module):
    """Computes what encoder and decoder share: all but the head."""

    def __init__(self, config: BartConfig, block: Callable[[int], nn.Module], context: ModelContext):
        super().__init__()
        self.config = config
        self.embedding = Embedding(
            config.vocab_size, config.hidden_size, config.embedding_scale, context=context, tied=config.tied
        )
        if not config.sinusoidal:
            self.positions = nn.Embedding(config.max_positions + config.position_offset, config.hidden_size)
        if config.embedding_norm:
            self.embedding_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.blocks = Blocks(config.num_layers, block, context=context)
        if config.final_norm:
            self.final_norm = _norm(config)

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the configuration and is not stored."""
        if self.config.sinusoidal:
            rows = self.config.max_positions + self.config.position_offset
            table = sinusoids(rows, self.config.hidden_size, endpoint=self.config.sine_endpoint)
            self.sines = table.to(device, self.embedding.weight.dtype)

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps token_ids [R] at batch.positions [R] -> hidden [R, hidden_size], final norm applied."""
        positions = self.sines if self.config.sinusoidal else self.positions.weight
        x = self.embedding(token_ids, batch, positions[self.config.position_offset :])
        if self.config.embedding_norm:
            x = self.embedding_norm(x)[1]
        x, delta = self.blocks(x, batch)
        if self.config.final_norm:
            return self.final_norm(x, delta)[1]
        return x if delta is None else x + delta


def sinusoids(rows: int, width: int, *, endpoint: bool = True) -> Tensor:
    """Returns a table [rows, width]: sines of frequencies that fall from 1 to 1/10000 (FairSeq's), or to one step
    before it (Marian's and PEGASUS's), their cosines, a zero if the width is odd."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half) * -(math.log(10000) / (half - endpoint)))
    angles = torch.arange(rows)[:, None] * frequencies
    return F.pad(torch.cat([angles.sin(), angles.cos()], dim=1), (0, width % 2))


class BartEncoder(Stack):
    """Turns token rows of packed sequences into hidden rows."""

    def __init__(self, config: BartConfig, context: ModelContext):
        super().__init__(config, lambda _: EncoderBlock(config, context), context)
        self.stages = context.stages

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        return self.stages.from_last(super().forward(token_ids, batch))


class BartDecoder(Stack):
    """Turns token rows into hidden rows, and these into logits."""

    def __init__(self, config: BartConfig, context: ModelContext):
        super().__init__(config, lambda i: DecoderBlock(config, i, context), context)
        self.head = output_head(self.embedding, tied=config.tied, context=context)
        if config.logits_bias:
            self.logits_bias = nn.Parameter(torch.zeros(config.vocab_size))

    def logits(self, hidden: Tensor, batch: ForwardBatch | None = None) -> Tensor:
        """Maps hidden [R, hidden_size] -> [R, vocab_size]"""
        return self.head(hidden, batch, self.logits_bias if self.config.logits_bias else None)

    def write_cross_kv(self, features: Tensor, batch: ForwardBatch) -> None:
        """Puts every layer's keys and values of an encoder's output [R, encoder_size] into the cache."""
        for block in cast("Iterable[DecoderBlock]", self.blocks):
            block.cross_attention.write(features, batch)


def encoder_rules(config: BartConfig) -> list[Any]:
    """Returns weight rules for the encoder of `(M)BartForConditionalGeneration` and its kin (names without
    `model.encoder.`)."""
    return [
        *_embedding("embed_tokens.weight", (*EMBEDDINGS[:2], "lm_head.weight"), config),
        *_relics("", config),
        *stack_rules("", {"self_attn": "attention"}, config),
    ]


def decoder_rules(config: BartConfig) -> list[Any]:
    """Returns weight rules for all else, and for `MBartForCausalLM` and `TrOCRForCausalLM` (names without the role's
    prefix)."""
    d, head = "model.decoder", f"{config.head_name}.weight"
    weight_rules = [
        *_embedding(EMBEDDINGS[1], EMBEDDINGS[::2], config, head=(head,) if config.tied else ()),
        *_relics(f"{d}.", config),
        *stack_rules(f"{d}.", {"self_attn": "self_attention"}, config),
        *cross_rules(f"{d}."),
    ]
    if config.logits_bias:
        weight_rules.append(Apply("final_logits_bias", "logits_bias", lambda x: x[0], "saved as one row"))
    else:
        weight_rules.append(Drop("final_logits_bias", "all zeros", optional=True))
    return weight_rules if config.tied else [*weight_rules, Rename(head, "head.weight")]


def _embedding(name: str, others: tuple[str, ...], config: BartConfig, head: tuple[str, ...] = ()) -> list[Any]:
    """Returns rules for a side's embedding. `others`: names of the other side's, which is the same where they share
    one."""
    if config.shared_embeddings:
        return [Tied(name, "embedding.weight", also=(*others, *head))]
    own = Tied(name, "embedding.weight", also=head)
    return [own, *(Drop(other, "it is the other side's", optional=True) for other in others)]


def _relics(prefix: str, config: BartConfig) -> list[Drop]:
    computed = ("embed_positions.weights",) if config.sinusoidal else ()
    return [Drop(f"{prefix}{name}", "nothing reads it", optional=True) for name in (*RELICS, *computed)]


def cross_rules(prefix: str) -> list[Any]:
    """Returns rules for a decoder's cross-attention and its norm."""
    cross, weight_rules = f"{prefix}layers.{{}}.encoder_attn", []
    for kind in ("weight", "bias"):
        weight_rules += [
            Rename(f"{cross}_layer_norm.{kind}", f"blocks.{{}}.cross_norm.{kind}"),
            Rename(f"{cross}.q_proj.{kind}", f"blocks.{{}}.cross_attention.q.{kind}"),
            Fuse(f"{cross}.{{k,v}}_proj.{kind}", f"blocks.{{}}.cross_attention.kv.{kind}"),
            Rename(f"{cross}.out_proj.{kind}", f"blocks.{{}}.cross_attention.out.{kind}"),
        ]
    return weight_rules


def stack_rules(prefix: str, attention: Mapping[str, str], config: BartConfig) -> list[Any]:
    """Returns rules for all but the embedding and cross-attention; `attention`: their name of self-attention ->
    ours."""
    [(theirs, ours)] = attention.items()
    layer, mine = f"{prefix}layers.{{}}", f"blocks.{{}}.{ours}"
    names = {
        f"{layer}.self_attn_layer_norm": f"blocks.{{}}.{ours.removesuffix('_attention')}_norm",
        f"{layer}.final_layer_norm": "blocks.{}.ffn_norm",
        f"{layer}.{theirs}.out_proj": f"{mine}.out",
        f"{layer}.fc1": "blocks.{}.ffn.up",
        f"{layer}.fc2": "blocks.{}.ffn.down",
    }
    if config.embedding_norm:
        names[f"{prefix}layernorm_embedding"] = "embedding_norm"
    if config.final_norm:
        names[f"{prefix}layer_norm"] = "final_norm"
    weight_rules: list[Any] = (
        [] if config.sinusoidal else [Rename(f"{prefix}embed_positions.weight", "positions.weight")]
    )
    for kind in ("weight", "bias"):
        weight_rules += [Rename(f"{a}.{kind}", f"{b}.{kind}") for a, b in names.items()]
        weight_rules.append(Fuse(f"{layer}.{theirs}.{{q,k,v}}_proj.{kind}", f"{mine}.qkv.{kind}"))
    return weight_rules


SPEC = ModelSpec("bart", BartConfig, parse_decoder, BartDecoder, decoder_rules, config_from_weights)
ENCODER_SPEC = ModelSpec("bart-encoder", BartConfig, parse_encoder, BartEncoder, encoder_rules, with_stored_positions)
