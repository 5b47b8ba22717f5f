"""What a model is told beside an image, a task of its own and a question, in fields of models that take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gradio as gr

if TYPE_CHECKING:
    from vlm.api.capabilities import Capabilities
    from vlm_app.demo.models import Models

OWN = ("The model's own", "")
Field = gr.Dropdown | gr.Textbox


def fields(models: Models, *names: str) -> dict[str, Field]:
    """Returns the fields of these names (task, question), as the first model takes them."""
    first = next(iter(models.values())).pipeline.capabilities
    own = _updates(first)
    task = lambda: gr.Dropdown(value="", label="Task", min_width=200, **own["task"])  # noqa: E731
    question = lambda: gr.Textbox("", label="Question", max_length=4096, **own["question"])  # noqa: E731
    made = {"task": task, "question": question}
    return {name: made[name]() for name in names}


def of_model(models: Models, model: str, *names: str) -> Any:
    """Returns what the fields of these names become for another model: one update, or a list of them."""
    own = _updates(models[model].pipeline.capabilities)
    updates = [gr.update(value="", **own[name]) for name in names]
    return updates[0] if len(updates) == 1 else updates


def words(capabilities: Capabilities, told: Mapping[str, Any]) -> dict[str, str]:
    """Returns what fields say to this model; what was written for another one stays out."""
    task, question = told.get("task") or "", (told.get("question") or "").strip()
    own = {"task": task if task in capabilities.tasks else "", "question": question if _asks(capabilities) else ""}
    return {name: text for name, text in own.items() if text}


def _asks(capabilities: Capabilities) -> bool:
    return capabilities.takes_question or bool(capabilities.asking_tasks)


def _updates(capabilities: Capabilities) -> dict[str, dict[str, Any]]:
    choices = [OWN, *((name, name) for name in capabilities.tasks)]
    return {
        "task": {"choices": choices, "visible": bool(capabilities.tasks)},
        "question": {"visible": _asks(capabilities)},
    }
