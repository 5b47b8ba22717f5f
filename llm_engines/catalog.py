"""What this package brings to the registry."""

from __future__ import annotations

from vlm.registry import ModelRef

MODELS = (ModelRef("bart", "llm_engines.models.bart:SPEC"),)
FAMILIES = ()
