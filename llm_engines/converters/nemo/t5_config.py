"""NeMo's configuration of a T5 (`model_config.yaml`) -> those of its encoder and decoder.

NVIDIA NeMo, megatron_lm_encoder_decoder_model.py and token_level_encoder_decoder.py. `encoder` and `decoder` hold each
side's fields; configurations of before NeMo 1.11 have one set for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from llm_engines.models.nemo_config import GATED, Numbers
from llm_engines.models.t5 import T5Config
from vlm.errors import ConfigError, listed, shown

ACTIVATIONS = {"gelu": "gelu"} | GATED
# fields that change the maths and that nothing here honours -> the values that ask for nothing
UNSUPPORTED = {
    "arch": (None, "transformer"), "encoder_arch": (None, "transformer"), "decoder_arch": (None, "transformer"),
    "headscale": (None, False), "normalization": (None, "layernorm", "layernorm1p", "rmsnorm"),
    "num_moe_experts": (None, 0, 1), "onnx_safe": (None, False),
    "position_embedding_type": (None, "learned_absolute", "relative"), "transformer_block_type": (None, "pre_ln"),
}  # fmt: skip
IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


@dataclass(frozen=True)
class Side:
    """An encoder or decoder, and what its configuration says of how its weights are kept."""

    network: T5Config
    fields: Mapping[str, Any]

    @property
    def one_less(self) -> bool:
        """Says whether the weights of norms are stored less one."""
        return self.fields.get("normalization") == "layernorm1p"

    @property
    def joined_gate(self) -> bool:
        """Says whether a gate and what it gates are one product."""
        return str(self.fields.get("activation")).startswith("fast")

    @property
    def by_part(self) -> bool:
        """Says whether queries, keys and values lie one after the other; else a head's lie together."""
        return bool(self.fields.get("megatron_legacy"))


def sides(config: Mapping[str, Any], vocab_size: int) -> dict[str, Side]:
    """Returns "encoder" and "decoder" of a configuration that holds the tokenizer's ids, too. Raises ConfigError that
    names every field which is missing or not supported."""
    errors = _unsupported(config, {"hiddens": (None,)})
    common = _common(config, errors) | {"vocab_size": vocab_size}
    fields = {
        name: config[name] if isinstance(config.get(name), Mapping) else config for name in ("encoder", "decoder")
    }
    if fields["decoder"].get("position_embedding_type") == "relative":
        errors += _unsupported(fields["decoder"], {"relative_position_bias_self_attention_only": (None, True)})
    networks = {name: T5Config(**common, **_own(own, errors)) for name, own in fields.items()}
    for name in ("hidden_size", *(["learned_positions"] if shares_embeddings(config) else [])):
        if len(values := {getattr(network, name) for network in networks.values()}) > 1:
            errors.append(f"encoder and decoder differ in {name} ({listed(sorted(values))})")
    if errors:
        raise ConfigError(f"this NeMo T5 configuration cannot be run exactly: {'; '.join(dict.fromkeys(errors))}.")
    networks["decoder"] = replace(networks["decoder"], logits_bias=_head_has_bias(config))
    return {name: Side(network, fields[name]) for name, network in networks.items()}


def shares_embeddings(config: Mapping[str, Any]) -> bool:
    """Says whether encoder and decoder have one embedding."""
    return bool(config.get("share_token_embeddings", True))


def head_is_tied(config: Mapping[str, Any]) -> bool:
    """Says whether the head is an embedding: the encoder's, whatever its configuration calls it."""
    return bool(config.get("share_decoder_tokens_head_embeddings", True))


def _head_has_bias(config: Mapping[str, Any]) -> bool:
    """Says whether the logits have a bias. Of one set of fields for both sides, those of a head that is an embedding
    have."""
    return bool(config.get("tokens_head_bias", True)) if "decoder" in config else head_is_tied(config)


def _common(config: Mapping[str, Any], errors: list[str]) -> dict[str, Any]:
    """Returns the fields of T5Config that both sides have in common."""
    limit = Numbers(dict(config), errors)("max_position_embeddings", config.get("seq_length") or 512)
    tied = head_is_tied(config) and shares_embeddings(config)
    return {name: config[name] for name in IDS} | {"max_positions": limit, "tied": tied, "scaled_head": False}


def _own(fields: Mapping[str, Any], errors: list[str]) -> dict[str, Any]:
    """Returns the fields of T5Config that a side has of its own."""
    errors += _unsupported(fields, UNSUPPORTED)
    number = Numbers(dict(fields), errors)
    hidden, heads = number("hidden_size"), number("num_attention_heads")
    width, learned = number("kv_channels", hidden // heads or 1), fields.get("position_embedding_type") != "relative"
    scaled, buckets = bool(fields.get("normalize_attention_scores", True)), "relative_attention_num_buckets"
    if fields.get("kv_channels") is None and hidden % heads:
        errors.append(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and kv_channels is missing")
    if number(buckets, 32) < 4:
        errors.append(f"{buckets} is {fields[buckets]}, it must be at least 4")
    if fields.get("apply_query_key_layer_scaling", True) and not (scaled and learned):
        what = "relative positions" if scaled else "normalize_attention_scores False"
        errors.append(f"apply_query_key_layer_scaling is True with {what}: layers would differ in their scores")
    return {
        "hidden_size": hidden, "num_layers": number("num_layers"), "num_heads": heads, "d_kv": width,
        "ffn_size": number("ffn_hidden_size", 4 * hidden), "activation": _function(fields, errors),
        "gated": fields.get("activation") in GATED, "num_buckets": number(buckets, 32),
        "max_distance": number("relative_attention_max_distance", 128),
        "norm_eps": number("layernorm_epsilon", 1e-5, float), "layer_norm": fields.get("normalization") != "rmsnorm",
        "bias": bool(fields.get("bias", True)), "learned_positions": learned,
        "attention_scale": width**-0.5 if scaled else 1.0,
    }  # fmt: skip


def _unsupported(fields: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> list[str]:
    return [f"{name} is {shown(fields[name])}" for name, values in neutral.items() if fields.get(name) not in values]


def _function(fields: Mapping[str, Any], errors: list[str]) -> str:
    """Returns the activation by our name. GELU is the one by tanh where it is fused with its bias, as it is by default
    where there are biases; of others NeMo leaves the activation out then."""
    name, bias = fields.get("activation", "gelu"), bool(fields.get("bias", True))
    is_fused = bias and fields.get("bias_activation_fusion", fields.get("bias_gelu_fusion", True))
    is_gelu, by_tanh = ACTIVATIONS.get(name) == "gelu", is_fused or fields.get("openai_gelu")
    if name not in ACTIVATIONS:
        errors.append(f"activation is {shown(name)}")
    elif by_tanh and not is_gelu:
        errors.append(f"{'bias_activation_fusion' if is_fused else 'openai_gelu'} is True with the activation {name}")
    return "gelu_new" if is_gelu and by_tanh else ACTIVATIONS.get(name, "gelu")
