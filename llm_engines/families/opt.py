"""OPT decoders."""

from __future__ import annotations

from typing import Any

from vlm.registry.spec import ChatFormat, FamilySpec, Role


def _opt(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    """Returns the published shapes of facebook/opt-*."""
    return {
        "model_type": "opt",
        "vocab_size": 50272,
        "hidden_size": hidden,
        "word_embed_proj_dim": hidden,
        "ffn_dim": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "max_position_embeddings": 2048,
        "bos_token_id": 2,
        "eos_token_id": 2,
        "pad_token_id": 1,
    }


OPT = FamilySpec(
    name="opt",
    summary="Text: OPT decoders (facebook/opt-*)",
    roles={"decoder": Role("opt")},
    matches=lambda config: config.get("model_type") == "opt",
    inputs=("text",),
    base_prefixes=("model.",),
    chat_format=ChatFormat(),
    architectures={"opt-2.7b": lambda: _opt(2560, 32, 32), "opt-6.7b": lambda: _opt(4096, 32, 32)},
)
