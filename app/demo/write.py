"""The tab of models that turn a text into another: translations and summaries."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import gradio as gr

from vlm.errors import InputError
from vlm_app.demo import examples
from vlm_app.demo.answers import answers, show_errors
from vlm_app.demo.models import Models
from vlm_app.demo.parts import LABELS, UNLISTED, model_choice, sampling_controls, set_options, timing_line
from vlm_app.text.tasks import NAMES, summary, translation

TRANSLATE, SUMMARIZE = "Translate", "Summarize"
PACKAGED_LANGUAGES = {"mini-t5": ("en", "de")}  # other T5 models know those of their paper


class WriteTab:
    title = "Translate / summarize"

    def __init__(self, models: Models):
        self.models = models

    def build(self) -> None:
        model, task, source, target, truncate = self._settings()
        text, result = self._texts()
        with gr.Row():
            timing = timing_line()
            stop = gr.Button("Stop", scale=0, min_width=90)
            run = gr.Button("Run", variant="primary", scale=0, min_width=160)
        lines = [[line, TRANSLATE] for line in examples.SENTENCES] + [[n, SUMMARIZE] for n in examples.notices()]
        gr.Examples(lines, [text, task], label="Examples")
        sampling = sampling_controls()
        gr.on([task.change, model.change], self.choices, [task, model], [source, target], **UNLISTED)
        writing = gr.on(
            [run.click, text.submit], show_errors(self.write), [text, task, source, target, truncate, model],
            [result, timing],
            inputs_kwargs={**sampling}, show_progress_on=timing, api_name="write",
        )  # fmt: skip
        stop.click(None, cancels=[writing], **UNLISTED)

    def _settings(self) -> tuple[gr.Dropdown, gr.Radio, gr.Dropdown, gr.Dropdown, gr.Checkbox]:
        codes = self.languages(next(iter(self.models)))
        with gr.Row(equal_height=True):
            model = model_choice(self.models)
            task = gr.Radio([TRANSLATE, SUMMARIZE], value=TRANSLATE, label="Task", min_width=280)
            languages = _language("From", codes, 0), _language("To", codes, 1)
            truncate = gr.Checkbox(label=LABELS["truncate"], show_label=True, min_width=220)
        return model, task, *languages, truncate

    def _texts(self) -> tuple[gr.Textbox, gr.Textbox]:
        with gr.Row(equal_height=True):
            text = gr.Textbox(label="Text", placeholder="Type or paste a text", lines=8, max_lines=16)
            result = gr.Textbox(label="Result", interactive=False, buttons=["copy"], lines=8, max_lines=16)
        return text, result

    def choices(self, task: str, model: str) -> tuple[Any, Any]:
        """Offers the languages of a model, where it is told them."""
        codes = self.languages(model)
        visible = task == TRANSLATE and bool(codes)
        source, target = (gr.update(choices=_choices(codes), value=_nth(codes, n), visible=visible) for n in (0, 1))
        return source, target

    async def write(
        self,
        text: str | None,
        task: str,
        source: str | None,
        target: str | None,
        truncate: bool,
        model: str,
        **sampling: Any,
    ) -> AsyncGenerator[tuple[str, str], None]:
        """Yields the translation or summary as it grows, and the timing."""
        if not text or not text.strip():
            raise InputError("the text is empty; type one, or take an example.")
        entry = self.models[model]
        if task == SUMMARIZE:
            to_input = summary(entry.pipeline, None, truncate)
        else:
            to_input = translation(entry.pipeline, source, target, prefix=None, truncate=truncate)
        async with aclosing(answers(entry, to_input(text), [], set_options(sampling))) as states:
            async for state in states:
                yield state

    def languages(self, model: str) -> list[str]:
        """Returns the languages that a model can be told; none where it knows one pair."""
        pipeline = self.models[model].pipeline
        if pipeline.tokenizer is not None and pipeline.tokenizer.languages is not None:
            return sorted(pipeline.tokenizer.languages.ids)
        if pipeline.family.name != "t5":
            return []
        return list(PACKAGED_LANGUAGES.get(model, NAMES))


def _language(label: str, codes: list[str], place: int) -> gr.Dropdown:
    return gr.Dropdown(_choices(codes), value=_nth(codes, place), label=label, visible=bool(codes), min_width=160)


def _choices(codes: list[str]) -> list[tuple[str, str]]:
    return [(NAMES.get(code, code), code) for code in codes]


def _nth(codes: list[str], place: int) -> str | None:
    return codes[place] if place < len(codes) else None
