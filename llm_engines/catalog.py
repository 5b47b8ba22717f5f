"""What this package brings to the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlm.registry import ConverterRef, FamilySpec, ModelRef, Role

MODELS = (
    ModelRef("bart", "llm_engines.models.bart:SPEC"),
    ModelRef("bart-encoder", "llm_engines.models.bart:ENCODER_SPEC"),
    ModelRef("t5", "llm_engines.models.t5:SPEC"),
    ModelRef("t5-encoder", "llm_engines.models.t5:ENCODER_SPEC"),
)


def _is_fairseq(folder: Path) -> bool:
    return any(folder.glob("*.pt")) and any(folder.glob("dict.*.txt")) and not (folder / "config.json").exists()


CONVERTERS = (ConverterRef("fairseq", "llm_engines.converters.fairseq:convert", _is_fairseq),)


def _is(*model_types: str) -> Any:
    """Encoder-decoder models as a whole: a decoder alone is a part of something else."""
    return lambda config: config.get("model_type") in model_types and config.get("is_encoder_decoder", True)


def _t5(d_model: int, d_ff: int, layers: int, heads: int, v1_1: bool) -> dict[str, Any]:
    """The published shapes of google-t5/t5-* and google/flan-t5-*."""
    return {
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": 32128,
        "d_model": d_model,
        "d_kv": 64,
        "d_ff": d_ff,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "feed_forward_proj": "gated-gelu" if v1_1 else "relu",
        "tie_word_embeddings": not v1_1,
        "n_positions": 512,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
    }


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


FAMILIES = (
    FamilySpec(
        name="t5",
        summary="Text to text: T5, T5 v1.1, Flan-T5, mT5, ByT5, UL2 (google-t5/t5-*, google/flan-t5-*, …)",
        roles={
            "encoder": Role("t5-encoder", weight_prefix="encoder.", shared=("shared.weight",)),
            "decoder": Role("t5"),
        },
        matches=_is("t5", "mt5"),
        inputs=("text",),
        architectures={
            "t5-small": lambda: _t5(512, 2048, 6, 8, v1_1=False),
            "t5-base": lambda: _t5(768, 3072, 12, 12, v1_1=False),
            "flan-t5-base": lambda: _t5(768, 2048, 12, 12, v1_1=True),
            "flan-t5-large": lambda: _t5(1024, 2816, 24, 16, v1_1=True),
            "flan-t5-xl": lambda: _t5(2048, 5120, 24, 32, v1_1=True),
        },
    ),
    FamilySpec(
        name="bart",
        summary="Text to text: BART, mBART, mBART-50 (facebook/bart-*, facebook/mbart-large-*)",
        roles={
            "encoder": Role("bart-encoder", weight_prefix="model.encoder.", shared=("model.shared.weight",)),
            "decoder": Role("bart"),
        },
        matches=_is("bart", "mbart"),
        inputs=("text",),
        architectures={
            "bart-large-cnn": lambda: _bart("bart", 50264, forced_eos_token_id=2),
            "mbart-large-50": lambda: _bart("mbart", 250054, scale_embedding=True, forced_eos_token_id=2),
        },
    ),
    FamilySpec(
        name="fairseq",
        summary="Translation: FairSeq's transformers, from a folder with model.pt, dict.*.txt and bpecodes",
        roles={"encoder": Role("bart-encoder"), "decoder": Role("bart")},
        matches=lambda config: False,  # its folders have no config.json
        inputs=("text",),
    ),
)
