"""The tab of models that are asked in words: a conversation, with images in it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.processing_utils import save_pil_to_cache

from vlm.api.async_pipeline import AsyncPipeline
from vlm.errors import InputError
from vlm.processing.chat.conversation import Conversation, ImagePart, Message
from vlm_app.core.overlay import regions_of
from vlm_app.demo import examples, told
from vlm_app.demo.answers import answers, show_errors
from vlm_app.demo.documents import UploadedPage, uploaded_name
from vlm_app.demo.documents import drawn as draw_uploaded
from vlm_app.demo.models import Models, takes_images
from vlm_app.demo.parts import LATEX, UNLISTED, Controls, model_choice, sampling_controls, set_options, timing_line

NOTHING = {"text": "", "files": []}


@dataclass(frozen=True)
class Turn:
    """What one of both said."""

    role: str
    text: str
    images: tuple[str, ...] = ()  # files
    drawn: str | None = None  # a file: the image with the places that the text names

    @property
    def chat_message(self) -> dict[str, Any]:
        after = [{"path": self.drawn}] if self.drawn else []
        return {"role": self.role, "content": [*({"path": path} for path in self.images), self.text, *after]}

    @property
    def message(self) -> Message:
        """Returns the turn as a part of a conversation; the images come apart from it."""
        return Message(self.role, (*[ImagePart()] * len(self.images), self.text))


class AskTab:
    """Questions and answers. A model without a template for conversations hears each question by itself, with the last
    images."""

    def __init__(self, models: Models):
        self.models = models
        self.sees = any(takes_images(model) for model in models.values())
        self.title = "Ask about an image" if self.sees else "Ask"

    def build(self) -> None:
        turns = gr.State(())
        with gr.Row():
            with gr.Column(scale=5):
                chat, box = self._conversation()
                with gr.Row():
                    timing = timing_line()
                    stop = gr.Button("Stop", size="sm", scale=0, min_width=90)
                    new = gr.Button("New conversation", size="sm", scale=0, min_width=150)
            with gr.Column(scale=2, min_width=280):
                model, task, sampling = self._settings(box)
        outputs = [chat, timing, turns, box]
        submission = box.submit(
            show_errors(self.answer), [box, turns, model], outputs,
            inputs_kwargs={**task, **sampling}, show_progress_on=timing, api_name="ask",
        )  # fmt: skip
        stop.click(None, cancels=[submission], **UNLISTED)
        # the box stays: the next question may have been begun
        gr.on([new.click, chat.clear], forgotten, outputs=[chat, timing, turns], cancels=[submission], **UNLISTED)

    def _conversation(self) -> tuple[gr.Chatbot, gr.MultimodalTextbox]:
        hint = "Attach or paste an image and ask about it" if self.sees else "Ask something"
        chat = gr.Chatbot(
            label="Conversation", height=480, latex_delimiters=LATEX, placeholder=hint, feedback_options=None,
            buttons=[], elem_classes="chat",
        )  # fmt: skip
        box = gr.MultimodalTextbox(
            label="Question", show_label=False, placeholder=hint, file_types=["image"], file_count="multiple"
        )
        self.chat = chat
        return chat, box

    def _settings(self, box: gr.MultimodalTextbox) -> tuple[gr.Dropdown, dict[str, told.Field], Controls]:
        model, task = model_choice(self.models), told.fields(self.models, "task")
        model.change(lambda name: told.of_model(self.models, name, "task"), model, [*task.values()], **UNLISTED)
        if self.sees:
            with gr.Column(elem_classes="scenes"):
                gr.Examples(examples.questions(), box, label="Examples")
        return model, task, sampling_controls()

    async def answer(
        self, question: dict[str, Any], turns: tuple[Turn, ...], model: str, task: str = "", **sampling: Any
    ) -> AsyncGenerator[tuple[list[dict[str, Any]], str, tuple[Turn, ...], dict[str, Any]], None]:
        """Yields the conversation with the answer as it grows, and the timing. A question that fails is as if it had
        not been asked."""
        words = told.words(self.models[model].pipeline.capabilities, {"task": task})
        turns = (*turns, _question_turn(question, words.get("task", "")))
        source, paths = input_of(self.models[model], turns)
        source |= words
        files = [UploadedPage(path, 1) for path in paths]
        box_update, text, timing = NOTHING, "", ""
        async with aclosing(answers(self.models[model], source, files, set_options(sampling))) as states:
            async for text, timing in states:
                now = (*turns, Turn("assistant", text))
                yield [turn.chat_message for turn in now], timing, now, box_update
                box_update = gr.skip()  # the next question may have been begun
        if (drawn := await self._drawn(self.models[model], paths, text)) is not None:
            now = (*turns, Turn("assistant", text, drawn=drawn))
            yield [turn.chat_message for turn in now], timing, now, box_update

    async def _drawn(self, model: AsyncPipeline, paths: tuple[str, ...], text: str) -> str | None:
        """Returns a file of the image that an answer names places in; None of any other answer."""
        if not model.pipeline.capabilities.one_image_a_prompt or len(paths) != 1 or regions_of(text) is None:
            return None
        picture = await model.media.run(uploaded_name(paths[0]), draw_uploaded, paths[0], text)
        file = save_pil_to_cache(picture, self.chat.GRADIO_CACHE, "regions", "png")
        self.chat.temp_files.add(file)  # deleted as uploads are
        return file


def forgotten() -> tuple[list[Any], str, tuple[Turn, ...]]:
    """Returns a new conversation and timing."""
    return [], "", ()


def _question_turn(question: dict[str, Any], task: str) -> Turn:
    """Returns what was asked; a task may have no words beside it. Raises InputError where nothing is asked."""
    if not (question["text"].strip() or task):
        raise InputError("the question is empty; type one.")
    return Turn("user", question["text"], tuple(question["files"]))


def input_of(model: AsyncPipeline, turns: tuple[Turn, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns (an input of the pipeline, the files of its images)."""
    if takes_images(model) and not any(turn.images for turn in turns):
        raise InputError("there is no image yet; attach one, or take an example.")
    able = model.pipeline.capabilities
    if able.supports_chat and not able.one_image_a_prompt:
        conversation = Conversation(tuple(turn.message for turn in turns))
        return {"messages": conversation}, tuple(path for turn in turns for path in turn.images)
    return {"prompt": turns[-1].text or None}, next((turn.images for turn in reversed(turns) if turn.images), ())
