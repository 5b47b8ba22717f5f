"""The tab of models that read pages: a document's page, and beside it its markdown."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import gradio as gr

from vlm.processing.media.documents.document import IMAGE_SUFFIXES, PDF_SUFFIX
from vlm_app.demo import documents, examples, told
from vlm_app.demo.answers import answers, show_errors
from vlm_app.demo.models import Models
from vlm_app.demo.parts import LATEX, UNLISTED, model_choice, sampling_controls, set_options, timing_line

TOLD = ("task", "question")


class ReadTab:
    title = "Read a document"

    def __init__(self, models: Models):
        self.models = models

    def build(self) -> None:
        with gr.Row():
            with gr.Column():
                document, page = self._document()
                model = model_choice(self.models)
                with gr.Row():
                    words = told.fields(self.models, *TOLD)
                with gr.Row():
                    read_button = gr.Button("Read this page", variant="primary")
                    stop = gr.Button("Stop", scale=0, min_width=90)
                timing = timing_line()
                picture = gr.Image(label="Page", interactive=False, height=520, buttons=[])
            with gr.Column():
                text = self._markdown()
        gr.Examples([[path] for path in examples.pages()], document, label="Examples")
        sampling = sampling_controls()
        document.change(show_errors(self.open), document, [page, picture, text, timing], **UNLISTED)
        page.input(show_errors(self.turn), [document, page], picture, **UNLISTED)
        model.change(lambda name: told.of_model(self.models, name, *TOLD), model, [*words.values()], **UNLISTED)
        event = read_button.click(
            show_errors(self.read), [document, page, model], [text, timing],
            inputs_kwargs={**words, **sampling}, show_progress_on=timing, api_name="read",
        )  # fmt: skip
        stop.click(None, cancels=[event], **UNLISTED)

    def _document(self) -> tuple[gr.File, gr.Number]:
        kinds = sorted({*IMAGE_SUFFIXES, PDF_SUFFIX})
        with gr.Row(equal_height=True):
            document = gr.File(label="PDF or image", file_types=kinds, height=110, scale=3)
            page = gr.Number(1, label="Page", precision=0, minimum=1, min_width=110)
        return document, page

    def _markdown(self) -> gr.Markdown:
        return gr.Markdown(
            label="Markdown", latex_delimiters=LATEX, buttons=["copy"], container=True, min_height=720,
            elem_classes="page",
        )  # fmt: skip

    async def open(self, document: str | None) -> AsyncGenerator[tuple[Any, ...], None]:
        """Yields the first page of a new document, after nothing has been left of the last one."""
        yield gr.update(value=1, label="Page"), None, "", ""
        if document is not None:
            count, picture = await self._draw(documents.first_page, document)
            yield gr.update(value=1, label=f"Page (of {count})"), picture, "", ""

    async def turn(self, document: str | None, page: int | None) -> AsyncGenerator[Any, None]:
        """Yields another page of the document."""
        if document is not None and page is not None:
            yield await self._draw(documents.preview, document, page)

    async def read(
        self, document: str | None, page: int | None, model: str, task: str = "", question: str = "", **sampling: Any
    ) -> AsyncGenerator[tuple[str, str], None]:
        """Yields the page's markdown as it grows, and the timing."""
        files = [documents.UploadedPage(document, page)]
        entry, own = self.models[model], {"task": task, "question": question}
        source = told.words(entry.pipeline.capabilities, own)
        async with aclosing(answers(entry, source, files, set_options(sampling))) as states:
            async for state in states:
                yield state

    async def _draw(self, function: Callable[..., Any], document: str, *arguments: Any) -> Any:
        """Calls a function of `documents` where a file can do no harm: the models share their worker processes."""
        media = next(iter(self.models.values())).media
        return await media.run(documents.uploaded_name(document), function, document, *arguments)
