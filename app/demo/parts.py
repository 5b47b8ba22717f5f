"""Parts that the tabs share: the model to choose, sampling controls, how formulas are marked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypedDict

import gradio as gr
from gradio.components import Component

from vlm.requests.sampling_params import SamplingParams

Controls = dict[str, Component]  # by the fields of SamplingParams that they set


class Unlisted(TypedDict):
    """How an event is bound that is part of the page alone."""

    api_visibility: Literal["private"]
    show_progress: Literal["hidden"]


UNLISTED: Unlisted = {"api_visibility": "private", "show_progress": "hidden"}
# as Nougat writes them; a dollar is money
LATEX = [
    {"left": "\\(", "right": "\\)", "display": False},
    {"left": "\\[", "right": "\\]", "display": True},
]
# an empty field for numbers turns into 0 when it is shown
LEFT_OUT = {"num_beams": 0, "max_new_tokens": 0, "seed": -1}
# what settings are called on the page
LABELS = {
    "temperature": "Temperature", "top_p": "Top-p", "top_k": "Top-k", "num_beams": "Beams",
    "max_new_tokens": "Max tokens", "seed": "Seed", "truncate": "Cut off what is too long",
}  # fmt: skip


def model_choice(names: Iterable[str]) -> gr.Dropdown:
    names = list(names)
    return gr.Dropdown(names, value=names[0], label="Model", visible=len(names) > 1, scale=0, min_width=200)


def sampling_controls() -> Controls:
    defaults = SamplingParams()
    with gr.Accordion("Sampling", open=False):
        with gr.Row():
            temperature = gr.Slider(
                0, 2, defaults.temperature, step=0.05, label=_label("temperature", "0: the likeliest")
            )
            top_p = gr.Slider(0.01, 1, defaults.top_p, step=0.01, label=_label("top_p", "1: off"))
        with gr.Row():
            top_k = _whole(_label("top_k", "0: off"), defaults.top_k)
            beams = _whole(_label("num_beams", "0: the model's"), LEFT_OUT["num_beams"])
            most = _whole(_label("max_new_tokens", "0: all that fit"), LEFT_OUT["max_new_tokens"])
            seed = _whole(_label("seed", "-1: any"), LEFT_OUT["seed"])
    controls = (temperature, top_p, top_k, beams, most, seed)
    return dict(zip(("temperature", "top_p", "top_k", "num_beams", "max_new_tokens", "seed"), controls, strict=True))


def set_options(sampling: dict[str, Any]) -> dict[str, Any]:
    """Returns what was set; the rest is the model's own."""
    return {name: value for name, value in sampling.items() if value is not None and value != LEFT_OUT.get(name)}


def timing_line() -> gr.Markdown:
    return gr.Markdown(label="Timing", elem_classes="timing")


def _label(name: str, default: str) -> str:
    return f"{LABELS[name]} ({default})"


def _whole(label: str, value: int) -> gr.Number:
    return gr.Number(value, label=label, precision=0, min_width=120)
