"""GPT-NeoX decoders (Black et al., arXiv:2204.06745; Pythia: Biderman et al., arXiv:2304.01373).

A part of each head is turned by its position; attention and feed-forward read the same rows, side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vlm.config import ModelConfig
from vlm.convert.config_reader import ConfigReader, token_id
from vlm.convert.rules import Apply, Drop, Rename
from vlm.layers.attention import SelfAttention
from vlm.layers.blocks import Blocks
from vlm.layers.context import ModelContext
from vlm.layers.embedding import Embedding
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.heads import output_head
from vlm.layers.norm import LayerNorm
from vlm.layers.quant.producer import Producer
from vlm.layers.rotary import Rotary, RotaryConfig
from vlm.registry.spec import ModelSpec


@dataclass(frozen=True)
class GPTNeoXConfig(ModelConfig):
    ffn_size: int
    rotary: RotaryConfig
    activation: str = "gelu"
    norm_eps: float = 1e-5
    parallel: bool = True
    attention_bias: bool = True

    @property
    def cross_attention(self) -> bool:
        return False


def parse(hf: dict[str, Any]) -> GPTNeoXConfig:
    """Returns the configuration of a Hugging Face `gpt_neox`; ConfigError names every key that it cannot honour."""
    reader = ConfigReader(hf, "GPT-NeoX")
    hidden, heads = reader.size("hidden_size", 6144), reader.size("num_attention_heads", 64)
    positions, eos = reader.size("max_position_embeddings", 2048), token_id(hf, "eos_token_id", 2)
    bos = token_id(hf, "bos_token_id", 0)
    config = {
        "vocab_size": reader.size("vocab_size", 50432),
        "hidden_size": hidden,
        "num_layers": reader.size("num_hidden_layers", 44),
        "num_heads": heads,
        "max_positions": positions,
        "ffn_size": reader.size("intermediate_size", 24576),
        "rotary": _rotary(hf, hidden // heads, positions),
        "activation": reader.activation("hidden_act", "gelu"),
        "norm_eps": reader.get("layer_norm_eps", 1e-5),
        "parallel": bool(reader.get("use_parallel_residual", True)),
        "attention_bias": bool(reader.get("attention_bias", True)),
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": token_id(hf, "pad_token_id", eos),
        "decoder_start_token_id": bos,
    }
    reader.choice("tie_word_embeddings", [False], default=False)
    reader.multiple("hidden_size", hidden, "num_attention_heads", heads)
    reader.raise_errors()
    return GPTNeoXConfig(**config)


def _rotary(hf: dict[str, Any], head_dim: int, positions: int) -> RotaryConfig:
    """Reads the share of a head that is turned under its two names."""
    said = dict(hf.get("rope_scaling") or hf.get("rope_parameters") or {})
    share = said.pop("partial_rotary_factor", None) or hf.get("rotary_pct", 0.25)
    theta = hf.get("rotary_emb_base", 10000)
    return RotaryConfig.parse({"rope_parameters": said}, int(head_dim * share), positions, theta)


class Block(nn.Module):
    def __init__(self, config: GPTNeoXConfig, layer: int, context: ModelContext):
        super().__init__()
        self.parallel = config.parallel
        self.attention_norm, self.ffn_norm = _norm(config), _norm(config)
        self.attention = SelfAttention(
            config.hidden_size, config.num_heads, layer, bias=config.attention_bias, context=context
        )
        self.ffn = FeedForward(config.hidden_size, config.ffn_size, config.activation, context=context)
        self.producers = {"attention.qkv": Producer("attention_norm"), "ffn.up": Producer("ffn_norm")}

    def forward(self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, angles: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream and what is still to be added to it: the next norm adds it in one pass."""
        x, y = self.attention_norm(x, delta)
        delta = self.attention(y, batch, angles=angles)
        if self.parallel:
            return x, delta + self.ffn(self.ffn_norm(x)[1], batch)
        x, y = self.ffn_norm(x, delta)
        return x, self.ffn(y, batch)


def _norm(config: GPTNeoXConfig) -> LayerNorm:
    return LayerNorm(config.hidden_size, eps=config.norm_eps)


class GPTNeoX(nn.Module):
    """Token rows -> hidden rows -> logits."""

    def __init__(self, config: GPTNeoXConfig, context: ModelContext):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.hidden_size, context=context)
        self.rotary = Rotary(config.rotary)
        self.blocks = Blocks(config.num_layers, lambda i: Block(config, i, context), context=context)
        self.final_norm = _norm(config)
        self.head = output_head(self.embedding, tied=False, context=context)

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the configuration and is not stored."""
        self.rotary.init_buffers(device)

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps token_ids [R] -> hidden [R, hidden_size], final norm applied"""
        x, delta = self.blocks(self.embedding(token_ids, batch), batch, self.rotary(batch.positions))
        return self.final_norm(x, delta)[1]

    def logits(self, hidden: Tensor, batch: ForwardBatch | None = None) -> Tensor:
        """Maps hidden [R, hidden_size] -> [R, vocab_size]"""
        return self.head(hidden, batch)


def rules(config: GPTNeoXConfig) -> list[Any]:
    """Returns the weight rules of `GPTNeoXForCausalLM`: every tensor is used or named, every target filled."""
    layer = "gpt_neox.layers.{}"
    attention = {f"{layer}.attention.dense": "blocks.{}.attention.out"}
    others = {
        f"{layer}.input_layernorm": "blocks.{}.attention_norm",
        f"{layer}.post_attention_layernorm": "blocks.{}.ffn_norm",
        f"{layer}.mlp.dense_h_to_4h": "blocks.{}.ffn.up",
        f"{layer}.mlp.dense_4h_to_h": "blocks.{}.ffn.down",
        "gpt_neox.final_layer_norm": "final_norm",
    }
    found: list[Any] = [
        Rename("gpt_neox.embed_in.weight", "embedding.weight"),
        Rename("embed_out.weight", "head.weight"),
    ]
    buffers = ("bias", "masked_bias", "rotary_emb.inv_freq")
    found += [Drop(f"{layer}.attention.{name}", "follows from the configuration", optional=True) for name in buffers]
    for kind in ("weight", "bias"):
        has_attention = kind == "weight" or config.attention_bias
        names = others | (attention if has_attention else {})
        found += [Rename(f"{theirs}.{kind}", f"{ours}.{kind}") for theirs, ours in names.items()]
        qkv = f"{layer}.attention.query_key_value.{kind}"
        found += [_sorted(qkv, f"blocks.{{}}.attention.qkv.{kind}", config)] if has_attention else []
    return found


def _sorted(source: str, target: str, config: GPTNeoXConfig) -> Apply:
    def sort(x: Tensor) -> Tensor:
        """Maps [H · 3 · D, ...] -> [3 · H · D, ...]"""
        return x.view(config.num_heads, 3, config.head_dim, *x.shape[1:]).transpose(0, 1).reshape(x.shape)

    return Apply(source, target, sort, "queries, keys and values lie together a head; here all queries come first")


SPEC = ModelSpec("gpt-neox", GPTNeoXConfig, parse, GPTNeoX, rules)
