"""T5Gemma 2: an encoder and a decoder of Gemma 3's shape (Zhang et al., arXiv:2512.14856; Gemma 3: arXiv:2503.19786).

What T5Gemma has, but for caps of scores: each head's queries and keys are normed, layers of windows have rotary
positions of their own, and the decoder attends to its sequence and to the encoder's output in one softmax, by the same
projections. The token after an image has a row of its own in place of its embedding.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from llm_engines.models import t5gemma
from llm_engines.models.t5gemma import EMBEDDING, HEAD, T5GemmaConfig
from vlm.convert.config_reader import FULL, SLIDING, ConfigReader
from vlm.convert.rules import Rename, Tied, is_tied
from vlm.layers.attention import EncoderAttention, MergedAttention
from vlm.layers.blocks import Blocks
from vlm.layers.context import ModelContext
from vlm.layers.embedding import Embedding
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.heads import output_head
from vlm.layers.quant.producer import Producer
from vlm.layers.rotary import Rotary, RotaryConfig
from vlm.ops.attention_variant import AttentionVariant
from vlm.registry.spec import ModelSpec

ENCODER_EMBEDDING = "model.encoder.embed_tokens.weight"
EOI, ENCODER_EOI = (name.replace("weight", "eoi_embedding") for name in (EMBEDDING, ENCODER_EMBEDDING))
# kind of layer -> its rotary base by default, and where configurations of Gemma 3's form say it
THETA = {FULL: (1000000.0, "rope_theta"), SLIDING: (10000.0, "rope_local_base_freq")}


@dataclass(frozen=True, kw_only=True)
class T5Gemma2Config(T5GemmaConfig):
    """Holds the sizes of the encoder or of the decoder."""

    local_rotary: RotaryConfig  # of layers of windows
    ahead: int | None = None  # how far ahead an encoder's windows hold tokens
    eoi_token_id: int = 256000  # follows an image


def parse_decoder(hf: dict[str, Any]) -> T5Gemma2Config:
    """Returns the T5Gemma2Config of a Hugging Face `t5gemma2` configuration; ConfigError names every key that it cannot
    honour."""
    return _parse(hf, "decoder", hf.get("decoder") or {})


def parse_encoder(hf: dict[str, Any]) -> T5Gemma2Config:
    """Reads the encoder's configuration as `parse_decoder` does the decoder's."""
    return _parse(hf, "encoder", _encoder_text(hf))


def _encoder_text(hf: dict[str, Any]) -> dict[str, Any]:
    return (hf.get("encoder") or {}).get("text_config") or {}


def _parse(hf: dict[str, Any], side: str, own: dict[str, Any]) -> T5Gemma2Config:
    """Reads a side. `attn_logit_softcapping` changes nothing: Hugging Face's class does not read it."""
    reader, is_decoder = ConfigReader(own, f"T5Gemma 2 {side}"), side == "decoder"
    whole = ConfigReader(hf.get("encoder") or {}, "T5Gemma 2", aliases={"eoi_token_id": "eoi_token_index"})
    config = t5gemma.sizes(hf, reader, vocab_size=262208, max_positions=131072)
    window, every = reader.size("sliding_window", 4096), reader.size("sliding_window_pattern", 6)
    slides = reader.sliding_layers(config["num_layers"], lambda layer: (layer + 1) % every != 0)
    reach = window - 1 if is_decoder else (window - 1) // 2
    places = {"head_size": config["head_size"], "positions": config["max_positions"]}
    config |= {
        "cross_size": config["hidden_size"],
        "rotary": _rotary(own, FULL, **places),
        "local_rotary": _rotary(own, SLIDING, **places),
        "reaches": tuple(reach if sliding else None for sliding in slides),
        "ahead": None if is_decoder else window // 2,
        "attention_softcap": None,
        "logits_softcap": own.get("final_logit_softcapping"),
        "eoi_token_id": whole.token_id("eoi_token_index", 256000),
    }
    _check_sides(reader, hf)
    reader.raise_errors()
    return T5Gemma2Config(**config)


def _rotary(own: dict[str, Any], kind: str, *, head_size: int, positions: int) -> RotaryConfig:
    """Reads the rotary positions of a kind of layers. `rope_scaling`, in which Gemma 3's form says so, is of full ones
    alone."""
    said = (own.get("rope_parameters") or {}).get(kind) or {"rope_type": "default"}
    if kind == FULL:
        said = said | (own.get("rope_scaling") or {})
    theta, name = THETA[kind]
    said = {"rope_theta": own.get(name, theta)} | said
    return RotaryConfig.parse({"rope_parameters": said}, head_size, positions)


def _check_sides(reader: ConfigReader, hf: dict[str, Any]) -> None:
    """Adds an error for sides of different sizes, which have one embedding and one softmax."""
    for name, default in (("hidden_size", 2304), ("vocab_size", 262208)):
        sizes = [side.get(name) or default for side in (_encoder_text(hf), hf.get("decoder") or {})]
        if sizes[0] != sizes[1]:
            reader.errors.append(f"{name} of the encoder is {sizes[0]}, that of the decoder {sizes[1]}")


def config_from_weights(config: T5Gemma2Config, tensors: Mapping[str, Tensor]) -> T5Gemma2Config:
    """Returns the configuration with what the weights say: whether the head is tied."""
    tied = config.tied and is_tied(HEAD, [ENCODER_EMBEDDING, "embed_tokens.weight"], tensors)
    return dataclasses.replace(config, tied=tied)


class Block(nn.Module):
    """A layer of either side, by its attention."""

    def __init__(self, config: T5Gemma2Config, attention: EncoderAttention | MergedAttention, context: ModelContext):
        super().__init__()
        self.attention_norm, self.attention_post_norm = t5gemma.norm(config), t5gemma.norm(config)
        self.ffn_norm, self.ffn_post_norm = t5gemma.norm(config), t5gemma.norm(config)
        self.producers = {"ffn.up": Producer("ffn_norm")}
        if isinstance(attention, EncoderAttention):  # what merged attention projects comes from the encoder, too
            self.producers["attention.qkv"] = Producer("attention_norm")
        self.attention, self.ffn = attention, t5gemma.ffn(config, context)
        self.is_local = attention.variant.reach is not None

    def forward(
        self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, angles: Tensor, local_angles: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns the residual stream and the last sublayer's output, not yet added: the next norm adds it."""
        batch.record(x, delta)
        x, y = self.attention_norm(x, delta)
        mixed = self.attention(y, batch, angles=local_angles if self.is_local else angles)
        x, y = self.ffn_norm(x, self.attention_post_norm(mixed)[1])
        return x, self.ffn_post_norm(self.ffn(y, batch))[1]


def _attention(config: T5Gemma2Config, context: ModelContext, layer: int) -> dict[str, Any]:
    """Returns what the attention layers of both sides have in common."""
    reach = config.reaches[layer]
    return {
        "head_dim": config.head_size,
        "num_kv_heads": config.kv_heads,
        "bias": config.attention_bias,
        "scale": config.attention_scale,
        "qk_norm_eps": config.norm_eps,
        "variant": AttentionVariant(reach=reach, ahead=None if reach is None else config.ahead),
        "context": context,
    }


class Stack(nn.Module):
    """Computes what encoder and decoder share: all but the head."""

    def __init__(self, config: T5Gemma2Config, block: Callable[[int], nn.Module], *, tied: bool, context: ModelContext):
        super().__init__()
        self.config = config
        width = config.hidden_size
        self.embedding = Embedding(config.vocab_size, width, width**0.5, context=context, tied=tied)
        self.eoi_embedding = nn.Parameter(torch.zeros(width))  # as it is: unscaled
        self.rotary, self.local_rotary = Rotary(config.rotary), Rotary(config.local_rotary)
        self.blocks, self.final_norm = Blocks(config.num_layers, block, context=context), t5gemma.norm(config)

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the configuration and is not stored."""
        self.rotary.init_buffers(device)
        self.local_rotary.init_buffers(device)

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps token_ids [R] -> hidden [R, hidden_size], final norm applied"""
        x = self.embedding(token_ids, batch, dtype=torch.float32)
        x = torch.where((token_ids == self.config.eoi_token_id)[:, None], self.eoi_embedding.float(), x)
        x, delta = self.blocks(x, batch, self.rotary(batch.positions), self.local_rotary(batch.positions))
        return self.final_norm(x, delta)[1]


class T5Gemma2Encoder(Stack):
    """Turns token rows of packed sequences into hidden rows."""

    def __init__(self, config: T5Gemma2Config, context: ModelContext):
        def block(layer: int) -> Block:
            attention = EncoderAttention(config.hidden_size, config.num_heads, **_attention(config, context, layer))
            return Block(config, attention, context)

        super().__init__(config, block, tied=False, context=context)
        self.stages = context.stages

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        return self.stages.from_last(super().forward(token_ids, batch))


class T5Gemma2Decoder(Stack):
    """Turns token rows into hidden rows, and these into logits."""

    def __init__(self, config: T5Gemma2Config, context: ModelContext):
        def block(layer: int) -> Block:
            sizes = config.hidden_size, config.num_heads, layer
            return Block(config, MergedAttention(*sizes, **_attention(config, context, layer)), context)

        super().__init__(config, block, tied=config.tied, context=context)
        self.head = output_head(self.embedding, tied=config.tied, context=context)

    def logits(self, hidden: Tensor, batch: ForwardBatch | None = None) -> Tensor:
        """Maps hidden [R, hidden_size] -> [R, vocab_size]"""
        return AttentionVariant(self.config.logits_softcap).capped(self.head(hidden, batch))

    def write_cross_kv(self, features: Tensor, batch: ForwardBatch) -> None:
        """Puts every layer's keys and values of an encoder's output [R, hidden_size] into the cache."""
        for block in cast("Iterable[Block]", self.blocks):
            cast("MergedAttention", block.attention).write(features, batch)


def encoder_rules(config: T5Gemma2Config) -> list[Any]:
    """Returns weight rules for the encoder of `T5Gemma2ForConditionalGeneration` (names without `model.encoder.`)."""
    return [
        Tied("embed_tokens.weight", "embedding.weight", also=(EMBEDDING, HEAD)),
        Tied("embed_tokens.eoi_embedding", "eoi_embedding", also=(EOI,)),
        *_stack_rules(config),
    ]


def decoder_rules(config: T5Gemma2Config) -> list[Any]:
    """Returns weight rules for all else (names without `model.decoder.`)."""
    head = [] if config.tied else [Rename(HEAD, "head.weight")]
    return [
        Tied("embed_tokens.weight", "embedding.weight", also=(ENCODER_EMBEDDING, *((HEAD,) if config.tied else ()))),
        Tied("embed_tokens.eoi_embedding", "eoi_embedding", also=(ENCODER_EOI,)),
        *head,
        *_stack_rules(config),
    ]


def _stack_rules(config: T5Gemma2Config) -> list[Any]:
    norms = {f"layers.{{}}.self_attn.{x}_norm.weight": f"blocks.{{}}.attention.{x}_norm.weight" for x in "qk"}
    return [
        *t5gemma.stack_rules("", {"self_attn": "attention", "feedforward": "ffn"}),
        *t5gemma.projections("", "self_attn", "attention", bias=config.attention_bias),
        *itertools.starmap(t5gemma.norm_rule, norms.items()),
    ]


SPEC = ModelSpec("t5gemma2", T5Gemma2Config, parse_decoder, T5Gemma2Decoder, decoder_rules, config_from_weights)
ENCODER_SPEC = ModelSpec("t5gemma2-encoder", T5Gemma2Config, parse_encoder, T5Gemma2Encoder, encoder_rules)
