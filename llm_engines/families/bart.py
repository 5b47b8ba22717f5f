"""BART, mBART and mBART-50."""

from __future__ import annotations

from typing import Any

from vlm.registry.spec import FamilySpec, Role


def _bart(model_type: str, vocab_size: int, **fields: Any) -> dict[str, Any]:
    """The published shapes of facebook/bart-large-cnn and facebook/mbart-large-50-*."""
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder")
             for name, n in (("layers", 12), ("ffn_dim", 4096), ("attention_heads", 16))}  # fmt: skip
    return sides | {
        "model_type": model_type,
        "is_encoder_decoder": True,
        "vocab_size": vocab_size,
        "d_model": 1024,
        "max_position_embeddings": 1024,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        **fields,
    }


def _is_bart(config: dict[str, Any]) -> bool:
    """Says whether it is an encoder-decoder as a whole: a decoder alone is a part of something else."""
    return config.get("model_type") in ("bart", "mbart") and bool(config.get("is_encoder_decoder", True))


BART = FamilySpec(
    name="bart",
    summary="Text to text: BART, mBART, mBART-50 (facebook/bart-*, facebook/mbart-large-*)",
    roles={
        "encoder": Role(
            "bart-encoder",
            weight_prefix="model.encoder.",
            shared_tensors=("model.shared.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"),
        ),
        "decoder": Role("bart", shared_tensors=("model.encoder.embed_tokens.weight",)),
    },
    matches=_is_bart,
    inputs=("text",),
    base_prefixes=("model.",),
    architectures={
        "bart-large-cnn": lambda: _bart("bart", 50264, forced_eos_token_id=2),
        "mbart-large-50": lambda: _bart("mbart", 250054, scale_embedding=True, forced_eos_token_id=2),
    },
)
