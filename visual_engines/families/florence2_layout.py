"""Whose configuration a Florence-2's is: transformers' own, or that of the code which Microsoft publishes beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KINDS = {"florence_vision": False, "davit": True}  # model_type of the visual part -> is it Microsoft's?
# keys of Microsoft's that transformers' class does not read; it writes them where it was given them
REMOTE_KEYS = ("dim_embed", "visual_temporal_embedding", "image_pos_embed", "image_feature_source")


def is_remote(hf: Mapping[str, Any]) -> bool:
    """Tells Microsoft's own configurations from transformers'."""
    vision = hf.get("vision_config") or {}
    said = KINDS.get(str(vision.get("model_type")))
    return said if said is not None else "embed_dim" not in vision and any(key in vision for key in REMOTE_KEYS)
