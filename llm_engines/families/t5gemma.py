"""T5Gemma, adapted from Gemma 2 into encoder-decoders."""

from __future__ import annotations

from typing import Any

from vlm.registry.spec import FamilySpec, Role


def _module(hidden: int, layers: int, ffn: int, *, heads: int, kv_heads: int, head_dim: int) -> dict[str, Any]:
    """Returns a side's configuration, as published."""
    return {
        "vocab_size": 256000,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "query_pre_attn_scalar": head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "max_position_embeddings": 8192,
        "sliding_window": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    }


def _t5gemma(encoder: dict[str, Any], decoder: dict[str, Any]) -> dict[str, Any]:
    """Returns the published shapes of google/t5gemma-*."""
    ids = {"bos_token_id": 2, "pad_token_id": 0, "eos_token_id": 1}
    sides = {"encoder": encoder | ids, "decoder": decoder | ids}
    return {"model_type": "t5gemma", "is_encoder_decoder": True, "vocab_size": 256000, **sides, **ids}


def _2b() -> dict[str, Any]:
    return _module(2304, 26, 9216, heads=8, kv_heads=4, head_dim=256)


def _9b() -> dict[str, Any]:
    return _module(3584, 42, 14336, heads=16, kv_heads=8, head_dim=256)


T5GEMMA = FamilySpec(
    name="t5gemma",
    summary="Text to text: T5Gemma (google/t5gemma-*)",
    roles={
        "encoder": Role("t5gemma-encoder", weight_prefix="model.encoder."),
        "decoder": Role("t5gemma"),
    },
    matches=lambda config: config.get("model_type") == "t5gemma" and bool(config.get("is_encoder_decoder", True)),
    inputs=("text",),
    base_prefixes=("model.",),
    architectures={
        "t5gemma-2b-2b": lambda: _t5gemma(_2b(), _2b()),
        "t5gemma-9b-2b": lambda: _t5gemma(_9b(), _2b()),
    },
)
