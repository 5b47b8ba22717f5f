"""GPT-2, SantaCoder, StarCoder and NeMo decoders."""

from __future__ import annotations

from typing import Any

from llm_engines.families.nemo import gpt_next
from vlm.registry.spec import ChatFormat, FamilySpec, Role


def _gpt2(hidden: int, layers: int, heads: int, **fields: Any) -> dict[str, Any]:
    """Returns the published shapes of openai-community/gpt2-* and bigcode/*."""
    return {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "n_positions": 1024,
        "bos_token_id": 0 if fields else 50256,
        "eos_token_id": 0 if fields else 50256,
    } | fields


GPT2 = FamilySpec(
    name="gpt2",
    summary="Text, code: GPT-2, SantaCoder, StarCoder, NeMo decoders (openai-community/gpt2*, bigcode/*, .nemo)",
    roles={"decoder": Role("gpt2", hf_runs="unpacked")},
    matches=lambda config: config.get("model_type") in ("gpt2", "gpt_bigcode", "nemo_gpt"),
    inputs=("text",),
    base_prefixes=("transformer.", "model.language_model."),  # Hugging Face's, NeMo's
    chat_format=ChatFormat(),
    architectures={
        "gpt2-medium": lambda: _gpt2(1024, 24, 16),
        "santacoder": lambda: _gpt2(2048, 24, 16, model_type="gpt_bigcode", vocab_size=49280, n_positions=2048),
        "starcoder": lambda: _gpt2(6144, 40, 48, model_type="gpt_bigcode", vocab_size=49152, n_positions=8192),
        "gpt-next-2b": gpt_next,
    },
)
