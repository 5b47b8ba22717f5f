"""Pix2Struct's decoder: T5's, with names and a configuration of its own (Lee et al., arXiv:2210.03347)."""

from __future__ import annotations

from typing import Any

from llm_engines.models.t5 import DEFAULT_LENGTH, T5Config, T5Decoder, num_buckets
from vlm.convert.config_reader import ConfigReader, token_id
from vlm.convert.rules import Fuse, Rename, Tied
from vlm.registry.spec import ModelSpec

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
# transformers' configuration_pix2struct.py, whose attribute_map has more names of a kind that no file says
ALIASES = {"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"}


def parse(hf: dict[str, Any]) -> T5Config:
    """Reads a whole Hugging Face `pix2struct` configuration, whose head is tied or not for the decoder, too. Raises
    ConfigError that names every field it cannot honour."""
    text = hf.get("text_config") or {}
    reader = ConfigReader(text, "Pix2Struct decoder", ALIASES)
    hidden, heads, head_dim = reader.size("hidden_size", 768), reader.size("num_heads", 12), reader.size("d_kv", 64)
    pad = token_id(text, "pad_token_id", 0)
    config = {
        "vocab_size": reader.size("vocab_size", 50244),
        "hidden_size": hidden,
        "num_layers": reader.size("num_layers", 12),
        "num_heads": heads,
        "max_positions": DEFAULT_LENGTH,
        "d_kv": head_dim,
        "ffn_size": reader.size("d_ff", 2048),
        "activation": reader.activation("dense_act_fn", "gelu_new"),
        "gated": True,
        "num_buckets": num_buckets(reader),
        "max_distance": reader.size("relative_attention_max_distance", 128),
        "norm_eps": reader.get("layer_norm_epsilon", 1e-6),
        "tied": bool(hf.get("tie_word_embeddings", False)),
        "scaled_head": False,
        "bos_token_id": token_id(text, "bos_token_id", pad),
        "eos_token_id": token_id(text, "eos_token_id", 1),
        "pad_token_id": pad,
        "decoder_start_token_id": token_id(text, "decoder_start_token_id", 0),
    }
    if hidden != heads * head_dim:
        reader.errors.append(f"hidden_size is {hidden}, it must be num_heads · d_kv, {heads} · {head_dim}")
    if (rows := (hf.get("vision_config") or {}).get("hidden_size", 768)) != hidden:
        reader.errors.append(f"hidden_size is {hidden}, but the rows of the images are {rows} wide")
    reader.raise_errors()
    return T5Config(**config)


def rules(config: T5Config) -> list[Any]:
    """Returns weight rules of `Pix2StructTextModel`."""
    layer, block = "layer.{}.", "blocks.{}."
    own, cross, ffn = f"{layer}self_attention.", f"{layer}encoder_decoder_attention.", f"{layer}mlp."
    head = (HEAD,) if config.tied else ()
    weight_rules = [
        Tied(EMBEDDING, "embedding.weight", also=head),
        Rename("layer.0.self_attention.attention.relative_attention_bias.weight", "relative_bias.weight"),
        Rename(f"{own}layer_norm.weight", f"{block}self_norm.weight"),
        Fuse(f"{own}attention.{{query,key,value}}.weight", f"{block}self_attention.qkv.weight"),
        Rename(f"{own}attention.output.weight", f"{block}self_attention.out.weight"),
        Rename(f"{cross}layer_norm.weight", f"{block}cross_norm.weight"),
        Rename(f"{cross}attention.query.weight", f"{block}cross_attention.q.weight"),
        Fuse(f"{cross}attention.{{key,value}}.weight", f"{block}cross_attention.kv.weight"),
        Rename(f"{cross}attention.output.weight", f"{block}cross_attention.out.weight"),
        Rename(f"{ffn}layer_norm.weight", f"{block}ffn_norm.weight"),
        Fuse(f"{ffn}DenseReluDense.{{wi_0,wi_1}}.weight", f"{block}ffn.up.weight"),
        Rename(f"{ffn}DenseReluDense.wo.weight", f"{block}ffn.down.weight"),
        Rename("final_layer_norm.weight", "final_norm.weight"),
    ]
    return weight_rules if config.tied else [*weight_rules, Rename(HEAD, "head.weight")]


SPEC = ModelSpec("pix2struct-text", T5Config, parse, T5Decoder, rules)
