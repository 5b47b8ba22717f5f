"""GPT-2-shaped decoders: GPT-2, SantaCoder and StarCoder (one head of keys and values), NeMo's GPT-Next.

Radford et al. (2019); Li et al., StarCoder (arXiv:2305.06161); Shazeer, multi-query attention (arXiv:1911.02150).
GPT-Next turns a part of each head by its position, has SwiGLU and no biases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from llm_engines.models.nemo_config import nemo_fields
from vlm.config import ModelConfig
from vlm.convert.config_reader import ConfigReader, token_id
from vlm.convert.rules import Apply, Drop, Fuse, Rename, Tied, Transpose, is_tied
from vlm.layers.attention import SelfAttention
from vlm.layers.blocks import Blocks
from vlm.layers.context import ModelContext
from vlm.layers.embedding import Embedding
from vlm.layers.feed_forward import FeedForward
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.heads import output_head
from vlm.layers.norm import LayerNorm, RmsNorm
from vlm.layers.quant.producer import Producer
from vlm.layers.rotary import Rotary, RotaryConfig
from vlm.registry.spec import ModelSpec

HEADS = ("lm_head.weight", "model.language_model.output_layer.weight")
EMBEDDINGS = ("transformer.wte.weight", "model.language_model.embedding.word_embeddings.weight")


@dataclass(frozen=True)
class GPT2Config(ModelConfig):
    ffn_size: int
    kv_heads: int
    activation: str = "gelu_new"
    gated: bool = False
    bias: bool = True
    norm_eps: float = 1e-5
    rms_norm: bool = False  # else layer norms
    tied: bool = True
    scaled: bool = True  # scores by the root of a head's width
    scaled_by_layer: bool = False  # and by the layer's number, counted from 1
    rotary: RotaryConfig | None = None  # else positions are learned
    source: tuple[str, ...] = ("gpt2",)  # how its weights are kept: by "gpt2", "gpt_bigcode" or "nemo", and its ways

    @property
    def num_kv_heads(self) -> int:
        return self.kv_heads

    @property
    def cross_attention(self) -> bool:
        return False

    def attention_scale(self, layer: int) -> float:
        """Returns what a layer's scores are multiplied by."""
        scale = self.head_dim**-0.5 if self.scaled else 1.0
        return scale / (layer + 1) if self.scaled_by_layer else scale


def parse(hf: dict[str, Any]) -> GPT2Config:
    """Returns the GPT2Config of a Hugging Face `gpt2` or `gpt_bigcode` configuration, or of NeMo's under `model_type`
    "nemo_gpt"; ConfigError names every key that it cannot honour."""
    if hf.get("model_type") == "nemo_gpt":
        return GPT2Config(**nemo_fields(hf), **_ends(hf, 0))
    return _parse_hf(hf)


# transformers' configuration_gpt2.py and configuration_gpt_bigcode.py
ALIASES = {"hidden_size": "n_embd", "max_position_embeddings": "n_positions", "num_attention_heads": "n_head",
           "num_hidden_layers": "n_layer"}  # fmt: skip


def _parse_hf(hf: dict[str, Any]) -> GPT2Config:
    reader = ConfigReader(hf, "GPT-2", ALIASES)
    layout = reader.choice("model_type", ["gpt2", "gpt_bigcode"])
    reader.choice("add_cross_attention", [False], default=False)
    bigcode = layout == "gpt_bigcode"
    # SantaCoder was first published as a kind of its own of gpt2
    shared = reader.get("multi_query", True) if bigcode else hf.get("attention_head_type") == "multiquery"
    hidden, heads = reader.size("n_embd", 768), reader.size("n_head", 12)
    config = {
        "vocab_size": reader.size("vocab_size", 50257),
        "hidden_size": hidden,
        "num_layers": reader.size("n_layer", 12),
        "num_heads": heads,
        "max_positions": reader.size("n_positions", 1024),
        "ffn_size": reader.size("n_inner", 4 * hidden),
        "kv_heads": 1 if shared else heads,
        "activation": reader.activation("activation_function", "gelu_pytorch_tanh" if bigcode else "gelu_new"),
        "norm_eps": reader.get("layer_norm_epsilon", 1e-5),
        "tied": bool(reader.get("tie_word_embeddings", True)),
        "scaled": bool(reader.get("scale_attn_weights", True)),
        "scaled_by_layer": not bigcode and bool(reader.get("scale_attn_by_inverse_layer_idx", False)),
        "source": (layout, "multi_query") if shared and not bigcode else (layout,),
        **_ends(hf, 50256),
    }
    reader.multiple("n_embd", hidden, "n_head", heads)
    reader.raise_errors()
    return GPT2Config(**config)


def _ends(hf: dict[str, Any], default: int) -> dict[str, Any]:
    eos = token_id(hf, "eos_token_id", default)
    bos = token_id(hf, "bos_token_id", eos)
    pad = token_id(hf, "pad_token_id", eos)
    return {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad, "decoder_start_token_id": bos}


def config_from_weights(config: GPT2Config, tensors: Mapping[str, Tensor]) -> GPT2Config:
    """Returns the configuration with a head of its own where the weights hold one that is not the embedding's."""
    head = HEADS[1] if config.source[0] == "nemo" else HEADS[0]
    return dataclasses.replace(config, tied=config.tied and is_tied(head, EMBEDDINGS, tensors))


class Block(nn.Module):
    def __init__(self, config: GPT2Config, layer: int, context: ModelContext):
        super().__init__()
        self.attention_norm, self.ffn_norm = _norm(config), _norm(config)
        self.producers = {"attention.qkv": Producer("attention_norm"), "ffn.up": Producer("ffn_norm")}
        self.attention = SelfAttention(
            config.hidden_size, config.num_heads, layer, num_kv_heads=config.kv_heads, bias=config.bias,
            scale=config.attention_scale(layer), context=context,
        )  # fmt: skip
        self.ffn = FeedForward(
            config.hidden_size, config.ffn_size, config.activation, gated=config.gated, bias=config.bias,
            context=context,
        )  # fmt: skip

    def forward(
        self, x: Tensor, delta: Tensor | None, batch: ForwardBatch, angles: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Returns the residual stream and the last sublayer's output, not yet added: the next norm adds it."""
        x, y = self.attention_norm(x, delta)
        x, y = self.ffn_norm(batch.keep_rows(x), self.attention(y, batch, angles=angles))
        return x, self.ffn(y, batch.narrowed)


def _norm(config: GPT2Config) -> LayerNorm | RmsNorm:
    return (RmsNorm if config.rms_norm else LayerNorm)(config.hidden_size, config.norm_eps)


class GPT2(nn.Module):
    """Turns token rows into hidden rows, and these into logits."""

    def __init__(self, config: GPT2Config, context: ModelContext):
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.hidden_size, context=context, tied=config.tied)
        if config.rotary is None:
            self.positions = nn.Embedding(config.max_positions, config.hidden_size)
        else:
            self.rotary = Rotary(config.rotary)
        self.blocks = Blocks(config.num_layers, lambda i: Block(config, i, context), context=context, keeps_rows=True)
        self.final_norm = _norm(config)
        self.head = output_head(self.embedding, tied=config.tied, context=context)

    def init_buffers(self, device: torch.device) -> None:
        """Fills what follows from the configuration and is not stored."""
        if self.config.rotary is not None:
            self.rotary.init_buffers(device)

    def forward(self, token_ids: Tensor, batch: ForwardBatch) -> Tensor:
        """Maps token_ids [R] -> hidden rows to keep [n, hidden_size], final norm applied"""
        rotates = self.config.rotary is not None
        x = self.embedding(token_ids, batch, None if rotates else self.positions.weight)
        angles = self.rotary(batch.positions) if rotates else None
        x, delta = self.blocks(x, batch, angles)
        return self.final_norm(x, delta)[1]

    def logits(self, hidden: Tensor, batch: ForwardBatch | None = None) -> Tensor:
        """Maps hidden [R, hidden_size] -> [R, vocab_size]"""
        return self.head(hidden, batch)


def rules(config: GPT2Config) -> list[Any]:
    """Returns weight rules of `GPT2LMHeadModel`, `GPTBigCodeForCausalLM`, SantaCoder's own class, and NeMo's GPT."""
    return _hf_rules(config) if config.source[0] != "nemo" else _nemo_rules(config)


def _hf_rules(config: GPT2Config) -> list[Any]:
    layer, conv = "transformer.h.{}", config.source[0] == "gpt2"
    names = {f"{layer}.attn.c_proj": "blocks.{}.attention.out", f"{layer}.mlp.c_fc": "blocks.{}.ffn.up",
             f"{layer}.mlp.c_proj": "blocks.{}.ffn.down"}  # fmt: skip
    norms = {f"{layer}.ln_1": "blocks.{}.attention_norm", f"{layer}.ln_2": "blocks.{}.ffn_norm",
             "transformer.ln_f": "final_norm"}  # fmt: skip
    qkv, ours = f"{layer}.attn.c_attn", "blocks.{}.attention.qkv"
    weight_rules: list[Any] = [Rename("transformer.wpe.weight", "positions.weight")]
    weight_rules += [Drop(f"{layer}.attn.{name}", "the causal mask", optional=True) for name in ("bias", "masked_bias")]
    weight_rules += [Rename(f"{a}.{kind}", f"{b}.{kind}") for a, b in norms.items() for kind in ("weight", "bias")]
    weight_rules += [Rename(f"{a}.bias", f"{b}.bias") for a, b in names.items()]
    weight_rules += [(Transpose if conv else Rename)(f"{a}.weight", f"{b}.weight") for a, b in names.items()]
    if "multi_query" in config.source:
        apart = f"{layer}.attn.{{q,kv}}_attn"
        weight_rules += [
            Fuse(f"{apart}.weight", f"{ours}.weight", dim=1, transposed=True),
            Fuse(f"{apart}.bias", f"{ours}.bias"),
        ]
    elif conv:
        weight_rules += [Transpose(f"{qkv}.weight", f"{ours}.weight"), Rename(f"{qkv}.bias", f"{ours}.bias")]
    elif config.kv_heads == 1:
        weight_rules += [Rename(f"{qkv}.{kind}", f"{ours}.{kind}") for kind in ("weight", "bias")]
    else:
        weight_rules += [_grouped(f"{qkv}.{kind}", f"{ours}.{kind}", config) for kind in ("weight", "bias")]
    return [*weight_rules, *_head_rules(config, EMBEDDINGS[0], HEADS[0])]


def _nemo_rules(config: GPT2Config) -> list[Any]:
    root = "model.language_model"
    layer = f"{root}.encoder.layers.{{}}"
    names = {
        f"{layer}.self_attention.dense": "blocks.{}.attention.out",
        f"{layer}.mlp.dense_4h_to_h": "blocks.{}.ffn.down",
    }
    norms = {
        f"{layer}.input_layernorm": "blocks.{}.attention_norm",
        f"{layer}.post_attention_layernorm": "blocks.{}.ffn_norm",
        f"{root}.encoder.final_layernorm": "final_norm",
    }
    weight_rules: list[Any] = [Drop(f"{root}.rotary_pos_emb.inv_freq", "follows from the configuration", optional=True)]
    if config.rotary is None:
        weight_rules.append(Rename(f"{root}.embedding.position_embeddings.weight", "positions.weight"))
    for a, b in norms.items():
        if not config.rms_norm:
            weight_rules.append(Rename(f"{a}.bias", f"{b}.bias"))
        one_more = Apply(f"{a}.weight", f"{b}.weight", lambda x: x + 1, "stored less one")
        weight_rules.append(one_more if "layernorm1p" in config.source else Rename(f"{a}.weight", f"{b}.weight"))
    for kind in ("weight", "bias") if config.bias else ("weight",):
        weight_rules += [Rename(f"{a}.{kind}", f"{b}.{kind}") for a, b in names.items()]
        weight_rules.append(
            _grouped(f"{layer}.self_attention.query_key_value.{kind}", f"blocks.{{}}.attention.qkv.{kind}", config)
        )
        up, ours = f"{layer}.mlp.dense_h_to_4h", f"blocks.{{}}.ffn.up.{kind}"
        halves = Fuse(f"{layer}.mlp.{{dense_h_to_4h,dense_h_to_4h_2}}.{kind}", ours)
        weight_rules.append(halves if config.gated and "apart" in config.source else Rename(f"{up}.{kind}", ours))
    return [*weight_rules, *_head_rules(config, EMBEDDINGS[1], HEADS[1])]


def _grouped(source: str, target: str, config: GPT2Config) -> Apply:
    """Reorders queries, keys and values, which lie together a group of heads: here all queries come first."""
    each = config.num_heads // config.kv_heads

    def sort(x: Tensor) -> Tensor:
        parts = x.view(config.kv_heads, each + 2, config.head_dim, *x.shape[1:]).split((each, 1, 1), 1)
        return torch.cat([part.reshape(-1, *x.shape[1:]) for part in parts])

    return Apply(source, target, sort, "queries, keys and values lie together a group of heads")


def _head_rules(config: GPT2Config, embedding: str, head: str) -> list[Any]:
    if config.tied:
        return [Tied(embedding, "embedding.weight", also=(head,))]
    return [Rename(embedding, "embedding.weight"), Rename(head, "head.weight")]


SPEC = ModelSpec("gpt2", GPT2Config, parse, GPT2, rules, config_from_weights)
