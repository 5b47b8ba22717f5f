"""Qwen2, Qwen2.5 and Qwen3 decoders."""

from __future__ import annotations

from typing import Any

from vlm.registry.spec import ChatFormat, FamilySpec, Role


def qwen3_small() -> dict[str, Any]:
    """Returns the published shapes of Qwen/Qwen3-0.6B."""
    return {
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    }


QWEN = FamilySpec(
    name="qwen",
    summary="Text: Qwen2, Qwen2.5 and Qwen3 decoders (Qwen/*)",
    roles={"decoder": Role("llama")},
    matches=lambda config: config.get("model_type") in ("qwen2", "qwen3"),
    inputs=("text",),
    base_prefixes=("model.",),
    chat_format=ChatFormat(),
    architectures={"qwen3-0.6b": qwen3_small},
)
