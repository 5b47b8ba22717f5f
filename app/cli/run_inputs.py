"""What the options of `vlm run` ask for, and the inputs that they become for a family of models."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError, listed
from vlm_app.cli.decoding import check_chat_model, one_prompt, packaged_chat_model
from vlm_app.cli.options import DEFAULT_MODEL
from vlm_app.cli.text_options import DEFAULT_TEXT_MODEL, ids_of
from vlm_app.text.token_ids import without_padding

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm_app.text.sources import Item


@dataclass(frozen=True)
class RunInputs:
    """Images and a prompt, a conversation, or texts. What stands in stdin has been read."""

    images: list[Any]  # files' names, bytes from stdin, and pages of documents
    texts: list[str]
    prompt: str | None
    raw_prompt: str | None
    chat: bool
    ids: list[Item] = field(default_factory=list)  # rows of token ids
    framing: dict[str, Any] = field(default_factory=dict)  # what else the input of each text has
    long_document: str | None = None  # one of several pages, of which no --pages were named

    @classmethod
    def from_options(
        cls,
        images: list[str],
        texts: list[str],
        prompt: str | None,
        raw_prompt: str | None,
        chat: bool,
        ids: Path | None = None,
        framing: dict[str, Any] | None = None,
        pages: str | None = None,
    ) -> RunInputs:
        """InputError, before a model is loaded, for what does not go together."""
        words = {"--prompt": prompt is not None, "--raw-prompt": raw_prompt is not None, "--chat": chat}
        given = [name for name, there in words.items() if there]
        framing = {name: value for name, value in (framing or {}).items() if value is not None}
        if ids is not None:
            others = {
                "--image": images,
                "--text": texts,
                "--pages": pages,
                **words,
                **{f"--{n}": True for n in framing},
            }
            return cls([], [], None, None, False, ids=ids_of(ids, None, others))
        if chat and framing:
            raise InputError(f"{listed(f'--{name}' for name in framing)} is for single requests; leave --chat out.")
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
            framing=framing,
            long_document=None if pages else next((each[0].name for each in found if len(each) > 1), None),
        )

    @property
    def places(self) -> list[str] | None:
        """What rows of token ids are called."""
        return [item.place for item in self.ids] or None

    def default_model(self) -> str:
        """What answers where no model is named."""
        if self.texts or self.ids:
            return DEFAULT_TEXT_MODEL
        in_words = self.chat or self.prompt is not None or self.raw_prompt is not None
        if in_words and (found := packaged_chat_model()):
            return found
        if not self.images or self.chat:
            raise InputError("no model that is asked in words is packaged; name one: --model llava-hf/llava-1.5-7b-hf.")
        return DEFAULT_MODEL

    def check_comparable(self) -> None:
        if self.chat:
            raise InputError("--check-accuracy is for single requests; leave --chat out.")

    def check_pages(self, pipeline: Pipeline) -> None:
        """InputError where all pages of a long document would stand in one prompt, unasked."""
        if pipeline.capabilities.takes_prompt and self.long_document:
            raise InputError(
                f"{self.long_document} has several pages, and {pipeline.family.name} takes them all in one prompt; say"
                " which with --pages 1 or --pages 1-3."
            )

    def inputs(self, pipeline: Pipeline) -> list[dict[str, Any]]:
        """One for all images and the prompt, where the family is asked in words; else one an image, or a text."""
        if self.ids:
            items = without_padding(self.ids, pipeline.config.pad_token_id)
            return [{"input_ids": item.given.get("input_ids", [])} for item in items]
        if self.texts:
            return [{"text": text, "prompt": self.prompt, **self.framing} for text in self.texts]
        if self.raw_prompt is not None or not self.images:
            check_chat_model(pipeline, "--prompt alone" if self.raw_prompt is None else "--raw-prompt")
        self.check_pages(pipeline)
        if not pipeline.capabilities.takes_prompt:
            if named := [f"--{name}" for name in self.framing]:
                raise InputError(f"{listed(named)} is for texts; {pipeline.family.name} takes none.")
            return [{"images": [source], "prompt": self.prompt} for source in self.images]
        given = {"images": self.images or None, "prompt": self.prompt, "raw_prompt": self.raw_prompt}
        return [{name: value for name, value in {**given, **self.framing}.items() if value is not None}]


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
