"""PEGASUS, whose models each write one kind of summary."""

from __future__ import annotations

from typing import Any

from llm_engines.families.bart import ROLES, bart_shape
from vlm.registry.spec import FamilySpec


def _pegasus(positions: int) -> dict[str, Any]:
    """Returns the published shapes of google/pegasus-*."""
    shape = bart_shape("pegasus", 96103, layers=16, activation_function="relu", scale_embedding=True)
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0, "forced_eos_token_id": 1}
    return shape | special | {"max_position_embeddings": positions}


PEGASUS = FamilySpec(
    name="pegasus",
    summary="Summaries: PEGASUS (google/pegasus-large, google/pegasus-xsum, google/pegasus-cnn_dailymail, …)",
    roles=ROLES,
    matches=lambda config: config.get("model_type") == "pegasus" and bool(config.get("is_encoder_decoder", True)),
    inputs=("text",),
    base_prefixes=("model.",),
    architectures={"pegasus-large": lambda: _pegasus(1024), "pegasus-xsum": lambda: _pegasus(512)},
)
