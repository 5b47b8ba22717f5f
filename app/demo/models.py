"""The models of a demo, and the tab that each of them is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlm.api.async_pipeline import AsyncPipeline
    from vlm.registry.spec import FamilySpec

Models = Mapping[str, "AsyncPipeline"]  # by name

ASK, READ, WRITE = "ask", "read", "write"
PACKAGED = ("mini-llava", "mini-blip2", "mini-nougat", "mini-t5")


def tab_of(family: FamilySpec) -> str:
    """Names a model's tab: it is asked in words, reads pages, or turns a text into another."""
    if family.chat_format is not None:
        return ASK
    return WRITE if "text" in family.inputs else READ


def models_of(tab: str, models: Models) -> dict[str, AsyncPipeline]:
    return {name: model for name, model in models.items() if tab_of(model.pipeline.family) == tab}


def takes_images(model: AsyncPipeline) -> bool:
    return "image" in model.pipeline.family.inputs
