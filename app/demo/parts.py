"""Parts that the tabs share: the model to choose, sampling controls, how formulas are marked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gradio as gr

from vlm.runtime.request import SamplingParams

# as Nougat writes them; a dollar is money
LATEX = [
    {"left": "\\(", "right": "\\)", "display": False},
    {"left": "\\[", "right": "\\]", "display": True},
]


def model_choice(names: Iterable[str]) -> gr.Dropdown:
    names = list(names)
    return gr.Dropdown(names, value=names[0], label="Model", visible=len(names) > 1, scale=0, min_width=200)


def sampling_controls() -> dict[str, gr.components.Component]:
    """By the fields of SamplingParams that they set. An empty one leaves it to the model."""
    defaults = SamplingParams()
    with gr.Accordion("Sampling", open=False), gr.Row():
        return {
            "temperature": gr.Slider(
                0, 2, defaults.temperature, step=0.05, label="Temperature", info="0 takes the likeliest token"
            ),
            "top_p": gr.Slider(0.01, 1, defaults.top_p, step=0.01, label="Top-p", info="1 is off"),
            "top_k": _whole("Top-k", defaults.top_k, "0 is off"),
            "num_beams": _whole("Beams", None, "above 1 needs temperature 0", "the model's"),
            "max_new_tokens": _whole("Max tokens", None, "of the answer", "as many as fit"),
            "seed": _whole("Seed", None, "makes sampling repeatable", "random"),
        }


def given(sampling: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in sampling.items() if value is not None}


def timing_line() -> gr.Markdown:
    return gr.Markdown(elem_classes="timing", container=False)


def _whole(label: str, value: int | None, info: str, placeholder: str | None = None) -> gr.Number:
    return gr.Number(value, label=label, info=info, placeholder=placeholder, precision=0, min_width=120)
