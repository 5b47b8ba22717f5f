"""LLaMA-shaped decoders: LLaMA, Vicuna, Mistral and Qwen.

Touvron et al., LLaMA (arXiv:2302.13971): RMS norms before the sublayers, rotary positions, SwiGLU. Query heads may
share heads of keys and values (Ainslie et al., arXiv:2305.13245). Qwen2 (arXiv:2407.10671) has biases of queries, keys
and values; Qwen3 (arXiv:2505.09388) norms each head's queries and keys instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from llm_engines.models.llama_config import LlamaConfig, parse
from vlm.convert.rules import Drop, Fuse, Rename, Tied, is_tied
from vlm.layers.attention import SelfAttention
from vlm.layers.blocks import Blocks
from vlm.layers.context import ModelContext
from vlm.layers.embedding import Embedding
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.heads import output_head
from vlm.layers.norm import RmsNorm
from vlm.layers.quant.producer import Producer
from vlm.layers.rotary import Rotary
from vlm.ops.attention_variant import AttentionVariant
from vlm.registry.spec import ModelSpec

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def config_from_weights(config: LlamaConfig, tensors: Mapping[str, Tensor]) -> LlamaConfig:
    """Returns the configuration with a head of its own where the weights hold one that is not the embedding's."""
    return dataclasses.replace(config, tied=config.tied and is_tied(HEAD, [EMBEDDING], tensors))


def _norm(config: LlamaConfig) -> RmsNorm:
    return RmsNorm(config.hidden_size, config.norm_eps)


class Block(nn.Module):
    def __init__(self, config: LlamaConfig, layer: int, context: ModelContext):
        super().__init__()
        self.attention_norm, self.ffn_norm = _norm(config), _norm(config)
        self.producers = {"attention.qkv": Producer("attention_norm"), "ffn.up": Producer("ffn_norm")}
        self.attention = SelfAttention(
            config.hidden_size, config.num_heads, layer, head_dim=config.head_size, num_kv_heads=config.kv_heads,
            bias=config.attention_bias, out_bias=config.out_bias,
            qk_norm_eps=config.norm_eps if config.qk_norm else None,
            variant=AttentionVariant(reach=None if layer in config.whole_layers else config.reach), context=context,
        )  # fmt: skip
        self.ffn = FeedForward(
            config.hidden_size, config.ffn_size, config.activation, gated=True, bias=config.mlp_bias, context=context
        )

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the residual stream and the last sublayer's output, not yet added: the next norm adds it."""
        x, y = self.attention_norm(x, delta)
        x, y = self.ffn_norm(batch.keep_rows(x), self.attention(y, batch, angles=angles))
        return x, self.ffn(y, batch.narrowed)


class Llama(nn.Module):
    """Turns token rows into hidden rows, and these into logits."""

    def __init__(self, config: LlamaConfig, context: ModelContext):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.hidden_size, context=context, tied=config.tied)
        self.rotary = Rotary(config.rotary)
        self.blocks = Blocks(config.num_layers, lambda i: Block(config, i, context), context=context, keeps_rows=True)
        self.final_norm = _norm(config)
        self.head = output_head(self.embedding, tied=config.tied, context=context)

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the configuration and is not stored."""
        self.rotary.init_buffers(device)

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps token_ids [R] -> hidden rows to keep [n, hidden_size], final norm applied"""
        x, delta = self.blocks(self.embedding(token_ids, batch), batch, self.rotary(batch.positions))
        return self.final_norm(x, delta)[1]

    def logits(self, hidden: Tensor, batch: ForwardBatch | None = None) -> Tensor:
        """Maps hidden [R, hidden_size] -> [R, vocab_size]"""
        return self.head(hidden, batch)


def rules(config: LlamaConfig) -> list[Any]:
    """Returns weight rules of `LlamaForCausalLM`, and of Mistral's, Qwen2's and Qwen3's."""
    layer = "model.layers.{}"
    names = {  # theirs -> ours, and whether it has biases
        f"{layer}.self_attn.o_proj": ("blocks.{}.attention.out", config.out_bias),
        f"{layer}.mlp.down_proj": ("blocks.{}.ffn.down", config.mlp_bias),
    }
    fusions = {
        f"{layer}.self_attn.{{q,k,v}}_proj": ("blocks.{}.attention.qkv", config.attention_bias),
        f"{layer}.mlp.{{gate,up}}_proj": ("blocks.{}.ffn.up", config.mlp_bias),
    }
    weight_rules: list[Any] = [
        Rename(f"{layer}.input_layernorm.weight", "blocks.{}.attention_norm.weight"),
        Rename(f"{layer}.post_attention_layernorm.weight", "blocks.{}.ffn_norm.weight"),
        Rename("model.norm.weight", "final_norm.weight"),
        *(
            Drop(f"{module}.rotary_emb.inv_freq", "follows from the configuration", optional=True)
            for module in (f"{layer}.self_attn", "model")
        ),
    ]
    for kind in ("weight", "bias"):
        for rule, layers in ((Rename, names), (Fuse, fusions)):
            has = {theirs: ours for theirs, (ours, bias) in layers.items() if kind == "weight" or bias}
            weight_rules += [rule(f"{theirs}.{kind}", f"{ours}.{kind}") for theirs, ours in has.items()]
    for part in ("q", "k") if config.qk_norm else ():
        weight_rules.append(
            Rename(f"{layer}.self_attn.{part}_norm.weight", f"blocks.{{}}.attention.{part}_norm.weight")
        )
    if config.tied:
        return [*weight_rules, Tied(EMBEDDING, "embedding.weight", also=(HEAD,))]
    return [*weight_rules, Rename(EMBEDDING, "embedding.weight"), Rename(HEAD, "head.weight")]


SPEC = ModelSpec("llama", LlamaConfig, parse, Llama, rules, config_from_weights)
