"""What the options of `vlm run` ask for, and the inputs that they become for a family of models."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlm_app.cli.decoding import asked_model, check_asked, one_prompt
from vlm_app.cli.options import DEFAULT_MODEL
from vlm_app.cli.text_options import DEFAULT_TEXT_MODEL

from vlm.errors import InputError, listed

if TYPE_CHECKING:
    from vlm.pipeline import Pipeline


@dataclass(frozen=True)
class Asked:
    """Images and a prompt, a conversation, or texts. What stands in stdin has been read."""

    images: list[Any]  # files' names, bytes from stdin, and pages of documents
    texts: list[str]
    prompt: str | None
    raw_prompt: str | None
    chat: bool
    long_document: str | None = None  # one of several pages, of which no --pages were named

    @classmethod
    def of(
        cls,
        images: list[str],
        texts: list[str],
        prompt: str | None,
        raw_prompt: str | None,
        chat: bool,
        pages: str | None = None,
    ) -> Asked:
        """InputError, before a model is loaded, for what does not go together."""
        words = {"--prompt": prompt is not None, "--raw-prompt": raw_prompt is not None, "--chat": chat}
        given = [name for name, there in words.items() if there]
        if (images and texts) or not (images or texts or given):
            raise InputError('give --image FILE, --prompt TEXT, --chat or --text "A text.", one kind at a time.')
        if len(given) > 1 or (texts and set(given) - {"--prompt"}):
            raise InputError(f"{listed(given + ['--text'] * bool(texts))} were given together; give one of them.")
        if [*images, *texts, prompt, raw_prompt].count("-") + chat * images.count("-") > 1:
            raise InputError("stdin (-) is asked for twice; it can be read once.")
        if pages is not None and not images:
            raise InputError("--pages names pages of the documents of --image; give one, or leave --pages out.")
        found = [_pages_of(_bytes_of_stdin() if source == "-" else source, pages) for source in images]
        return cls(
            [one for each in found for one in each],
            [one_prompt(text, verbatim=True) for text in texts],
            None if prompt is None else one_prompt(prompt),
            None if raw_prompt is None else one_prompt(raw_prompt, verbatim=True),
            chat,
            next((each[0].name for each in found if len(each) > 1), None) if pages is None else None,
        )

    def default_model(self) -> str:
        """What answers where no model is named."""
        if self.texts:
            return DEFAULT_TEXT_MODEL
        in_words = self.chat or self.prompt is not None or self.raw_prompt is not None
        if in_words and (found := asked_model()):
            return found
        if not self.images or self.chat:
            raise InputError("no model that is asked in words is packaged; name one: --model llava-hf/llava-1.5-7b-hf.")
        return DEFAULT_MODEL

    def check_comparable(self) -> None:
        if self.chat:
            raise InputError("--check-accuracy is for single requests; leave --chat out.")

    def check_pages(self, pipeline: Pipeline) -> None:
        """InputError where all pages of a long document would stand in one prompt, unasked."""
        if pipeline.family.prompt is not None and self.long_document:
            raise InputError(
                f"{self.long_document} has several pages, and {pipeline.family.name} takes them all in one prompt; say"
                " which with --pages 1 or --pages 1-3."
            )

    def inputs(self, pipeline: Pipeline) -> list[dict[str, Any]]:
        """One for all images and the prompt, where the family is asked in words; else one an image, or a text."""
        if self.texts:
            return [{"text": text, "prompt": self.prompt} for text in self.texts]
        if self.raw_prompt is not None or not self.images:
            check_asked(pipeline, "--prompt alone" if self.raw_prompt is None else "--raw-prompt")
        self.check_pages(pipeline)
        if pipeline.family.prompt is None:
            return [{"images": [source], "prompt": self.prompt} for source in self.images]
        given = {"images": self.images or None, "prompt": self.prompt, "raw_prompt": self.raw_prompt}
        return [{name: value for name, value in given.items() if value is not None}]


def _pages_of(source: str | bytes, pages: str | None) -> list[Any]:
    """Returns the source itself where it is a picture; of a PDF, and of any document with --pages, its pages."""
    from vlm.processing.documents import document_pages, is_pdf

    paged = is_pdf(source) or (pages is not None and isinstance(source, str))
    return [*document_pages(source, pages)] if paged else [source]


def _bytes_of_stdin() -> bytes:
    data = sys.stdin.buffer.read()
    if not data:
        raise InputError("stdin is empty; `--image -` reads an image file from it.")
    return data
