"""OPT decoders (Zhang et al., arXiv:2205.01068): learned positions, which start at row 2, and relu.

The 350m variant normalizes after each sublayer, and its embeddings are narrower than its layers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from vlm.config import ModelConfig
from vlm.convert.config_reader import ConfigReader, token_id
from vlm.convert.rules import Drop, Fuse, Rename, Tied, is_tied
from vlm.layers.attention import SelfAttention
from vlm.layers.blocks import Blocks
from vlm.layers.context import ModelContext
from vlm.layers.embedding import Embedding
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.heads import output_head
from vlm.layers.linear import Linear
from vlm.layers.norm import LayerNorm
from vlm.layers.quant.producer import Producer
from vlm.registry.spec import ModelSpec

HEAD, EMBEDDING = "lm_head.weight", "model.decoder.embed_tokens.weight"
POSITION_OFFSET = 2  # rows 0 and 1 of the position table are never used: a relic of fairseq's padding index


@dataclass(frozen=True)
class OPTConfig(ModelConfig):
    ffn_size: int
    embedding_width: int
    activation: str = "relu"
    pre_norm: bool = True  # norms before the sublayers, else after
    final_norm: bool = True
    bias: bool = True
    tied: bool = True

    @property
    def embedding_size(self) -> int:
        return self.embedding_width

    @property
    def cross_attention(self) -> bool:
        return False


def parse(hf: dict[str, Any]) -> OPTConfig:
    """Returns the OPTConfig of a Hugging Face `opt` configuration; ConfigError names every key that it cannot
    honour."""
    reader = ConfigReader(hf, "OPT")
    reader.choice("model_type", ["opt"], default="opt")
    reader.choice("layer_norm_elementwise_affine", [True], default=True)
    hidden, heads = reader.size("hidden_size", 768), reader.size("num_attention_heads", 12)
    pre_norm = bool(reader.get("do_layer_norm_before", True))
    config = {
        "vocab_size": reader.size("vocab_size", 50272),
        "hidden_size": hidden,
        "num_layers": reader.size("num_hidden_layers", 12),
        "num_heads": heads,
        "max_positions": reader.size("max_position_embeddings", 2048),
        "ffn_size": reader.size("ffn_dim", 3072),
        "embedding_width": reader.size("word_embed_proj_dim", hidden),
        "activation": reader.activation("activation_function", "relu"),
        "pre_norm": pre_norm,
        "final_norm": pre_norm and not reader.get("_remove_final_layer_norm", False),
        "bias": bool(reader.get("enable_bias", True)),
        "tied": bool(reader.get("tie_word_embeddings", True)),
        "bos_token_id": token_id(hf, "bos_token_id", 2),
        "eos_token_id": token_id(hf, "eos_token_id", 2),
        "pad_token_id": token_id(hf, "pad_token_id", 1),
        "decoder_start_token_id": token_id(hf, "bos_token_id", 2),
    }
    reader.multiple("hidden_size", hidden, "num_attention_heads", heads)
    reader.raise_errors()
    return OPTConfig(**config)


def config_from_weights(config: OPTConfig, tensors: Mapping[str, Tensor]) -> OPTConfig:
    """Returns the configuration with a head of its own where the weights hold one that is not the embedding's."""
    return dataclasses.replace(config, tied=config.tied and is_tied(HEAD, [EMBEDDING], tensors))


class Block(nn.Module):
    def __init__(self, config: OPTConfig, layer: int, context: ModelContext):
        super().__init__()
        self.pre_norm = config.pre_norm
        self.attention_norm, self.ffn_norm = LayerNorm(config.hidden_size), LayerNorm(config.hidden_size)
        norms = {"attention.qkv": Producer("attention_norm"), "ffn.up": Producer("ffn_norm")}
        self.producers = norms if config.pre_norm else {}  # the residual stream reads a norm that comes after
        self.attention = SelfAttention(config.hidden_size, config.num_heads, layer, bias=config.bias, context=context)
        self.ffn = FeedForward(
            config.hidden_size, config.ffn_size, config.activation, bias=config.bias, context=context
        )

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch) -> tuple[Tensor, Tensor | None]:
        """Returns the residual stream and, where norms come first, the last sublayer's output, not yet added: the next
        norm adds it in one pass."""
        if self.pre_norm:
            x, y = self.attention_norm(x, delta)
            x, y = self.ffn_norm(batch.keep_rows(x), self.attention(y, batch))
            return x, self.ffn(y, batch.narrowed)
        x = self.attention_norm.of_sum(batch.keep_rows(x), self.attention(x, batch))
        return self.ffn_norm.of_sum(x, self.ffn(x, batch.narrowed)), None


class OPT(nn.Module):
    """Turns token rows into hidden rows, and these into logits."""

    def __init__(self, config: OPTConfig, context: ModelContext):
        super().__init__()
        self.config, width = config, config.embedding_width
        self.embedding = Embedding(config.vocab_size, width, context=context, tied=config.tied)
        self.positions = nn.Embedding(config.max_positions + POSITION_OFFSET, config.hidden_size)
        self.has_projections = width != config.hidden_size
        if self.has_projections:
            self.project_in = Linear(width, config.hidden_size, bias=False, context=context)
            self.project_out = Linear(config.hidden_size, width, bias=False, context=context)
        self.blocks = Blocks(config.num_layers, lambda i: Block(config, i, context), context=context, keeps_rows=True)
        if config.final_norm:
            self.final_norm = LayerNorm(config.hidden_size)
        self.head = output_head(self.embedding, tied=config.tied, context=context)

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps token_ids [R] -> hidden rows to keep [n, embedding_size], final norm applied"""
        learned = self.positions.weight[POSITION_OFFSET:]
        if self.has_projections:
            x = self.project_in(self.embedding(token_ids, batch), batch) + F.embedding(batch.positions, learned)
        else:
            x = self.embedding(token_ids, batch, learned)
        x, delta = self.blocks(x, batch)
        if self.config.final_norm:
            x = self.final_norm(x, delta)[1]
        elif delta is not None:
            x = x + delta
        return self.project_out(x, batch.narrowed) if self.has_projections else x

    def logits(self, hidden: Tensor, batch: ForwardBatch | None = None) -> Tensor:
        """Maps hidden [R, embedding_size] -> [R, vocab_size]"""
        return self.head(hidden, batch)


def rules(config: OPTConfig) -> list[Any]:
    """Returns weight rules of `OPTForCausalLM`."""
    d, layer = "model.decoder", "model.decoder.layers.{}"
    names = {
        f"{layer}.self_attn.out_proj": "blocks.{}.attention.out",
        f"{layer}.fc1": "blocks.{}.ffn.up",
        f"{layer}.fc2": "blocks.{}.ffn.down",
    }
    norms = {
        f"{layer}.self_attn_layer_norm": "blocks.{}.attention_norm",
        f"{layer}.final_layer_norm": "blocks.{}.ffn_norm",
    }
    weight_rules: list[Any] = [
        Rename(f"{d}.embed_positions.weight", "positions.weight"),
        Drop(f"{d}.version", "which FairSeq wrote it", optional=True),
    ]
    if config.final_norm:
        norms[f"{d}.final_layer_norm"] = "final_norm"
    else:
        weight_rules.append(
            Drop(f"{d}.final_layer_norm.{{weight,bias}}", "the configuration leaves it out", optional=True)
        )
    for kind in ("weight", "bias"):
        weight_rules += [Rename(f"{a}.{kind}", f"{b}.{kind}") for a, b in norms.items()]
        if kind == "weight" or config.bias:
            weight_rules += [Rename(f"{a}.{kind}", f"{b}.{kind}") for a, b in names.items()]
            weight_rules.append(Fuse(f"{layer}.self_attn.{{q,k,v}}_proj.{kind}", f"blocks.{{}}.attention.qkv.{kind}"))
    if config.embedding_width != config.hidden_size:
        weight_rules += [Rename(f"{d}.project_{way}.weight", f"project_{way}.weight") for way in ("in", "out")]
    if config.tied:
        return [*weight_rules, Tied(EMBEDDING, "embedding.weight", also=(HEAD,))]
    return [*weight_rules, Rename(EMBEDDING, "embedding.weight"), Rename(HEAD, "head.weight")]


SPEC = ModelSpec("opt", OPTConfig, parse, OPT, rules, config_from_weights)
