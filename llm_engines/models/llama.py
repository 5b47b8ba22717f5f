"""LLaMA-shaped decoders: LLaMA, Vicuna and Mistral.

Touvron et al., LLaMA (arXiv:2302.13971): RMS norms before the sublayers, rotary positions, SwiGLU. Query heads may
share heads of keys and values (Ainslie et al., arXiv:2305.13245).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
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
from vlm.layers.norm import RmsNorm
from vlm.layers.quant.producer import Producer
from vlm.layers.rotary import Rotary, RotaryConfig
from vlm.ops.attention_variant import AttentionVariant
from vlm.registry.spec import ModelSpec

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


@dataclass(frozen=True)
class LlamaConfig(ModelConfig):
    kv_heads: int
    head_size: int
    ffn_size: int
    rotary: RotaryConfig
    activation: str = "silu"
    norm_eps: float = 1e-6
    tied: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    reach: int | None = None  # how far back attention looks; None: all the way

    def __post_init__(self) -> None:
        if isinstance(self.rotary, dict):
            object.__setattr__(self, "rotary", RotaryConfig(**self.rotary))

    @property
    def head_dim(self) -> int:
        return self.head_size

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads

    @property
    def cross_attention(self) -> bool:
        return False


def parse(hf: dict[str, Any]) -> LlamaConfig:
    """Returns the LlamaConfig of a Hugging Face `llama` or `mistral` configuration; ConfigError names every key that
    it cannot honour."""
    reader = ConfigReader(hf, "LLaMA")
    mistral = reader.choice("model_type", ["llama", "mistral"], default="llama") == "mistral"
    hidden, heads = reader.size("hidden_size", 4096), reader.size("num_attention_heads", 32)
    head_size = reader.size("head_dim", hidden // heads)
    # null stands for as many as of queries, and in Mistral's class absence for 8
    kv_heads = reader.size("num_key_value_heads", 8 if mistral and "num_key_value_heads" not in hf else heads)
    positions = reader.size("max_position_embeddings", 4096 * 32 if mistral else 2048)
    config = {
        "vocab_size": reader.size("vocab_size", 32000),
        "hidden_size": hidden,
        "num_layers": reader.size("num_hidden_layers", 32),
        "num_heads": heads,
        "max_positions": positions,
        "reach": _reach(hf, positions) if mistral else None,
        "kv_heads": kv_heads,
        "head_size": head_size,
        "ffn_size": reader.size("intermediate_size", 14336 if mistral else 11008),
        "rotary": RotaryConfig.parse(hf, head_size, positions),
        "activation": reader.activation("hidden_act", "silu"),
        "norm_eps": reader.get("rms_norm_eps", 1e-6),
        "tied": bool(reader.get("tie_word_embeddings", False)),
        # Mistral's class has no biases, whatever its configuration says
        "attention_bias": not mistral and bool(reader.get("attention_bias", False)),
        "mlp_bias": not mistral and bool(reader.get("mlp_bias", False)),
        "bos_token_id": token_id(hf, "bos_token_id", 1),
        "eos_token_id": token_id(hf, "eos_token_id", 2),
        "pad_token_id": token_id(hf, "pad_token_id", 0),
        "decoder_start_token_id": token_id(hf, "bos_token_id", 1),
    }
    reader.multiple("num_attention_heads", heads, "num_key_value_heads", kv_heads)
    reader.raise_errors()
    return LlamaConfig(**config)


def _reach(hf: dict[str, Any], positions: int) -> int | None:
    """Returns how far Mistral's attention looks back. The window holds the token itself; absent it is 4096, null is
    none, and one that holds all positions is as good as none."""
    window = hf.get("sliding_window", 4096) or positions
    return window - 1 if window < positions else None


def config_from_weights(config: LlamaConfig, tensors: Mapping[str, Tensor]) -> LlamaConfig:
    """Returns the configuration with what the weights say of the head: one that is not stored is the embedding's."""
    tied = HEAD not in tensors or (config.tied and is_tied(HEAD, [EMBEDDING], tensors))
    return dataclasses.replace(config, tied=tied)


def _norm(config: LlamaConfig) -> RmsNorm:
    return RmsNorm(config.hidden_size, config.norm_eps)


class Block(nn.Module):
    def __init__(self, config: LlamaConfig, layer: int, context: ModelContext):
        super().__init__()
        self.attention_norm, self.ffn_norm = _norm(config), _norm(config)
        self.producers = {"attention.qkv": Producer("attention_norm"), "ffn.up": Producer("ffn_norm")}
        self.attention = SelfAttention(
            config.hidden_size, config.num_heads, layer, head_dim=config.head_size, num_kv_heads=config.kv_heads,
            bias=config.attention_bias, variant=AttentionVariant(reach=config.reach), context=context,
        )  # fmt: skip
        self.ffn = FeedForward(
            config.hidden_size, config.ffn_size, config.activation, gated=True, bias=config.mlp_bias, context=context
        )

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the residual stream and the last sublayer's output, not yet added: the next norm adds it."""
        x, y = self.attention_norm(x, delta)
        x, y = self.ffn_norm(x, self.attention(y, batch, angles=angles))
        return x, self.ffn(y, batch)


class Llama(nn.Module):
    """Turns token rows into hidden rows, and these into logits."""

    def __init__(self, config: LlamaConfig, context: ModelContext):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.hidden_size, context=context, tied=config.tied)
        self.rotary = Rotary(config.rotary)
        self.blocks = Blocks(config.num_layers, lambda i: Block(config, i, context), context=context)
        self.final_norm = _norm(config)
        self.head = output_head(self.embedding, tied=config.tied, context=context)

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the configuration and is not stored."""
        self.rotary.init_buffers(device)

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """token_ids [R] -> hidden [R, hidden_size], final norm applied"""
        x, delta = self.blocks(self.embedding(token_ids, batch), batch, self.rotary(batch.positions))
        return self.final_norm(x, delta)[1]

    def logits(self, hidden: Tensor, batch: ForwardBatch | None = None) -> Tensor:
        """hidden [R, hidden_size] -> [R, vocab_size]"""
        return self.head(hidden, batch)


def rules(config: LlamaConfig) -> list[Any]:
    """Returns weight rules of `LlamaForCausalLM` and `MistralForCausalLM`."""
    layer = "model.layers.{}"
    names = {
        f"{layer}.self_attn.o_proj": "blocks.{}.attention.out",
        f"{layer}.mlp.down_proj": "blocks.{}.ffn.down",
    }
    fusions = {
        f"{layer}.self_attn.{{q,k,v}}_proj": "blocks.{}.attention.qkv",
        f"{layer}.mlp.{{gate,up}}_proj": "blocks.{}.ffn.up",
    }
    weight_rules: list[Any] = [
        Rename(f"{layer}.input_layernorm.weight", "blocks.{}.attention_norm.weight"),
        Rename(f"{layer}.post_attention_layernorm.weight", "blocks.{}.ffn_norm.weight"),
        Rename("model.norm.weight", "final_norm.weight"),
        Drop(f"{layer}.self_attn.rotary_emb.inv_freq", "follows from the configuration", optional=True),
    ]
    for kind in ("weight", "bias"):
        has = {"self_attn": kind == "weight" or config.attention_bias, "mlp": kind == "weight" or config.mlp_bias}
        weight_rules += [Rename(f"{a}.{kind}", f"{b}.{kind}") for a, b in names.items() if has[a.split(".")[3]]]
        weight_rules += [Fuse(f"{a}.{kind}", f"{b}.{kind}") for a, b in fusions.items() if has[a.split(".")[3]]]
    if config.tied:
        return [*weight_rules, Tied(EMBEDDING, "embedding.weight", also=(HEAD,))]
    return [*weight_rules, Rename(EMBEDDING, "embedding.weight"), Rename(HEAD, "head.weight")]


SPEC = ModelSpec("llama", LlamaConfig, parse, Llama, rules, config_from_weights)
