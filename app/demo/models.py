"""The models of a demo, and the tab that each of them is for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlm.api.async_pipeline import AsyncPipeline
    from vlm.api.capabilities import Capabilities

Models = Mapping[str, "AsyncPipeline"]  # by name

ASK, READ, WRITE = "ask", "read", "write"
PACKAGED = ("mini-llava", "mini-blip2", "mini-nougat", "mini-t5")


def tab_of(capabilities: Capabilities) -> str:
    """What takes a prompt, reads pages, or turns a text into another."""
    if capabilities.takes_prompt:
        return ASK
    return WRITE if capabilities.takes_text else READ


def models_of(tab: str, models: Models) -> dict[str, AsyncPipeline]:
    return {name: model for name, model in models.items() if tab_of(model.pipeline.capabilities) == tab}


def takes_images(model: AsyncPipeline) -> bool:
    return model.pipeline.capabilities.takes_images
