"""LLaMA, Vicuna and Mistral decoders."""

from __future__ import annotations

from typing import Any

from vlm.registry.spec import ChatFormat, FamilySpec, Role


def _llama(hidden: int, ffn: int, layers: int, heads: int, **fields: Any) -> dict[str, Any]:
    """Returns the published shapes of lmsys/vicuna-* and mistralai/*."""
    return {
        "model_type": "llama",
        "vocab_size": 32000,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | fields


LLAMA = FamilySpec(
    name="llama",
    summary="Text: LLaMA, Vicuna and Mistral decoders (meta-llama/*, lmsys/vicuna-*, mistralai/*)",
    roles={"decoder": Role("llama")},
    matches=lambda config: config.get("model_type") in ("llama", "mistral"),
    inputs=("text",),
    base_prefixes=("model.",),
    chat_format=ChatFormat(),
    architectures={
        "vicuna-7b": lambda: _llama(4096, 11008, 32, 32),
        "mistral-7b": lambda: _llama(
            4096,
            14336,
            32,
            32,
            model_type="mistral",
            num_key_value_heads=8,
            max_position_embeddings=32768,
            sliding_window=4096,
        ),
    },
)
