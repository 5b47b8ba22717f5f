"""NeMo's GPTs and T5s, which the networks of GPT-2 and T5 run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vlm.registry.spec import ConverterRef


def _is_nemo(path: Path) -> bool:
    if path.is_file():
        return path.suffix == ".nemo"
    return (path / "model_config.yaml").is_file() and not (path / "config.json").exists()


def gpt_next() -> dict[str, Any]:
    """Returns the published shape of nvidia/GPT-2B-001, as NeMo's configuration names it."""
    return {
        "model_type": "nemo_gpt",
        "vocab_size": 256000,
        "hidden_size": 2048,
        "ffn_hidden_size": 5440,
        "num_layers": 24,
        "num_attention_heads": 16,
        "encoder_seq_length": 4096,
        "position_embedding_type": "rope",
        "rotary_percentage": 0.5,
        "activation": "fast-swiglu",
        "normalization": "layernorm1p",
        "bias": False,
        "share_embeddings_and_output_weights": False,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }


CONVERTER = ConverterRef(
    "nemo",
    "NeMo",
    "llm_engines.converters.nemo.convert:convert",
    _is_nemo,
    options=("tuned",),
    holds="llm_engines.converters.nemo.convert:beside_model",
)
