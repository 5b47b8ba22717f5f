"""What the options of `vlm run` ask for, and the inputs that they become for a family of models."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError, listed
from vlm.limits import MAX_PDF_BYTES
from vlm.options import by_flag, option, same_option
from vlm_app.cli.options.common import DEFAULT_MODEL
from vlm_app.cli.options.decoding import check_chat_model, check_has_encoder, one_prompt, packaged_chat_model
from vlm_app.cli.options.texts import DEFAULT_TEXT_MODEL, Framing, TextFiles, ids_of
from vlm_app.text.token_ids import without_padding

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.registry.spec import FamilySpec
    from vlm_app.text.sources import Item

PIECE = 2**20  # bytes of stdin that are read at once


@dataclass(frozen=True)
class RunSources:
    """What the command line gives to a model, beside a conversation."""

    image: tuple[str, ...] = option(
        (), "An image or PDF file, or - for stdin; repeat it for several, which belong to one prompt (for nougat, which"
        " takes no prompt about them: to a request each, as do a PDF's pages).", flags=("--image", "-i"),
    )  # fmt: skip
    pages: str | None = option(
        None, "Of every PDF and TIFF, as in vlm ocr: 3 or 1-4,7.", flags=("--pages", "--page"), default="all"
    )
    text: tuple[str, ...] = option(
        (), "For a model of texts: its input, or - for stdin, all of it; repeat it.", flags=("--text", "-t")
    )
    prompt: str | None = option(
        None, "What to do, or - for stdin, in the model's own template; <image> says where an image stands. A family"
        " that takes no text (nougat) continues it: the start of the output.",
    )  # fmt: skip
    raw_prompt: str | None = option(None, "The prompt as the model reads it, in no template.")
    task: str | None = option(
        None, "For a model that has tasks (Donut, Florence-2): what to do with each image, like docvqa or OD.",
        default="the one that it was tuned for",
    )  # fmt: skip
    question: str | None = option(
        None, "For a task that answers one, as docvqa does, or is of a text or region; and for a model that reads one"
        " on the image (Pix2Struct, DePlot).",
    )  # fmt: skip
    decoder_prompt_token_ids: tuple[int, ...] | None = same_option(Framing, "decoder_prompt_token_ids")
    input_ids: Path | None = same_option(TextFiles, "input_ids")

    @property
    def begins(self) -> dict[str, Any]:
        """Returns what each input says of where its output begins."""
        ids = self.decoder_prompt_token_ids
        return {} if ids is None else {"decoder_prompt_token_ids": ids}

    @property
    def of_task(self) -> dict[str, Any]:
        """Returns what each input says of its task."""
        return {name: value for name in ("task", "question") if (value := getattr(self, name)) is not None}


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
    of_task: dict[str, Any] = field(default_factory=dict)  # what the input of each image has
    begins: dict[str, Any] = field(default_factory=dict)  # what each input has that says where its output begins
    long_document: str | None = None  # one of several pages, of which no --pages were named

    @classmethod
    def from_options(cls, sources: RunSources, framing: Framing, *, chat: bool) -> RunInputs:
        """Reads what the options name. Raises InputError, before a model is loaded, for what does not go together."""
        if sources.input_ids is not None:
            others = by_flag(sources, "image", "text", "pages", "prompt", "raw_prompt", "task", "question")
            others |= {"--chat": chat, **by_flag(framing, "suffix", "truncate")}
            return cls([], [], None, None, False, ids=ids_of(sources.input_ids, others), begins=sources.begins)
        beside = {"suffix": framing.suffix, "truncate": framing.truncate or None}
        beside = {name: value for name, value in beside.items() if value is not None}
        _check_kinds(sources, beside, chat)
        documents = [_pages_of(_bytes_of_stdin() if name == "-" else name, sources.pages) for name in sources.image]
        long = next((each[0].name for each in documents if len(each) > 1), None)
        return cls(
            [one for each in documents for one in each],
            [one_prompt(text, verbatim=True) for text in sources.text],
            None if sources.prompt is None else one_prompt(sources.prompt),
            None if sources.raw_prompt is None else one_prompt(sources.raw_prompt, verbatim=True),
            chat,
            framing=beside,
            of_task=sources.of_task,
            begins=sources.begins,
            long_document=None if sources.pages else long,
        )

    @property
    def places(self) -> list[str] | None:
        """Returns what rows of token ids are called."""
        return [item.place for item in self.ids] or None

    def default_model(self) -> str:
        """Returns what answers where no model is named. Raises InputError where nothing packaged does."""
        if self.texts or self.ids:
            return DEFAULT_TEXT_MODEL
        in_words = self.chat or self.prompt is not None or self.raw_prompt is not None
        if in_words and (model := packaged_chat_model()):
            return model
        if not self.images or self.chat:
            raise InputError("no model that is asked in words is packaged; name one: --model llava-hf/llava-1.5-7b-hf.")
        return DEFAULT_MODEL

    def check_family(self, family: FamilySpec) -> None:
        """Raises InputError for a family that is not for these inputs."""
        if self.chat:
            check_chat_model(family, "--chat")
            return
        has_text = bool(self.texts or self.ids)
        if not has_text and (self.raw_prompt is not None or not self.images):
            check_chat_model(family, "--prompt alone" if self.raw_prompt is None else "--raw-prompt")
        family.check_inputs(has_text=bool(self.texts), has_image=bool(self.images))

    def check_comparable(self) -> None:
        if self.chat:
            raise InputError("--check-accuracy is for single requests; leave --chat out.")

    def check_requests(self, pipeline: Pipeline) -> None:
        """Raises InputError for pages that are read part by part, which are no requests that can be compared."""
        if self.are_pages(pipeline):
            raise InputError("--check-accuracy is for single requests, and a page is read part by part; add --prompt.")

    def check_pages(self, pipeline: Pipeline) -> None:
        """Raises InputError where all pages of a long document would stand in one prompt without a word."""
        able = pipeline.capabilities
        apart = able.one_image_a_prompt or self.are_pages(pipeline)
        if able.takes_prompt and not apart and self.long_document:
            raise InputError(
                f"{self.long_document} has several pages, and {pipeline.family.name} takes them all in one prompt; say"
                " which with --pages 1 or --pages 1-3."
            )

    def are_pages(self, pipeline: Pipeline) -> bool:
        """Says whether the images are pages that the model reads part by part: nothing is said about them."""
        words = (self.prompt, self.raw_prompt, *self.of_task.values(), *self.framing.values(), self.begins)
        return pipeline.capabilities.reads_pages_in_steps and bool(self.images) and not any(words)

    def inputs(self, pipeline: Pipeline) -> list[dict[str, Any]]:
        """Returns one for all images and the prompt, where the family takes prompts about several; else one an image,
        or a text."""
        if self.begins:
            check_has_encoder(pipeline)
        return [{**each, **self.begins} for each in self._sources(pipeline)]

    def _sources(self, pipeline: Pipeline) -> list[dict[str, Any]]:
        if self.ids:
            items = without_padding(self.ids, pipeline.config.pad_token_id)
            return [{"input_ids": item.fields.get("input_ids", [])} for item in items]
        if self.texts:
            return [{"text": text, "prompt": self.prompt, **self.framing} for text in self.texts]
        self.check_pages(pipeline)
        if not pipeline.capabilities.takes_prompt:
            if flags := [f"--{name}" for name in self.framing]:
                raise InputError(f"{listed(flags)} is for texts; {pipeline.family.name} takes none.")
            return [{"images": [source], "prompt": self.prompt, **self.of_task} for source in self.images]
        fields = {"prompt": self.prompt, "raw_prompt": self.raw_prompt, **self.framing, **self.of_task}
        said = {name: value for name, value in fields.items() if value is not None}
        if (pipeline.capabilities.one_image_a_prompt and self.images) or self.are_pages(pipeline):
            return [{"images": [source], **said} for source in self.images]
        return [{**({"images": self.images} if self.images else {}), **said}]


def _check_kinds(sources: RunSources, framing: dict[str, Any], chat: bool) -> None:
    """Raises InputError for options that do not go together, or where there is nothing to do."""
    images, texts = sources.image, sources.text
    words = {**by_flag(sources, "prompt", "raw_prompt"), "--chat": chat or None}
    flags = [name for name, value in words.items() if value is not None]
    if sources.of_task and (chat or texts):
        told = listed(f"--{name}" for name in sources.of_task)
        raise InputError(f"{told} is for images, a request each; leave it out.")
    if chat and framing:
        raise InputError(f"{listed(f'--{name}' for name in framing)} is for single requests; leave --chat out.")
    if chat and sources.begins:
        raise InputError("--decoder-prompt-token-ids is for single requests; leave --chat out.")
    if (images and texts) or not (images or texts or flags):
        raise InputError(
            'give --image FILE, --prompt TEXT, --chat or --text "A text.", one kind at a time; what is asked about an'
            " image is its --prompt."
        )
    if len(flags) > 1 or (texts and set(flags) - {"--prompt"}):
        raise InputError(f"{listed(flags + ['--text'] * bool(texts))} were given together; give one of them.")
    if [*images, *texts, sources.prompt, sources.raw_prompt].count("-") + chat * images.count("-") > 1:
        raise InputError("stdin (-) is asked for twice; it can be read once.")
    if sources.pages is not None and not images:
        raise InputError("--pages names pages of the documents of --image; give one, or leave --pages out.")


def _pages_of(source: str | bytes, pages: str | None) -> list[Any]:
    """Returns the source itself where it is a picture; of a document, and of anything with --pages, its pages. Raises
    ImageError and DocumentError for a file that is not there."""
    from vlm.processing.media.documents.document import document_pages, has_pages
    from vlm.processing.media.images import check_opens

    if has_pages(source) or (pages is not None and isinstance(source, str)):
        return [*document_pages(source, pages)]
    if isinstance(source, str):
        check_opens(source)
    return [source]


def _bytes_of_stdin() -> bytes:
    """Reads an image or a PDF. Raises InputError for nothing, and for more than a file of either may have."""
    data = io.BytesIO()
    while piece := sys.stdin.buffer.read(PIECE):  # in one go it would take memory for as much as is allowed
        data.write(piece)
        if data.tell() > MAX_PDF_BYTES:
            raise InputError(
                f"stdin has more than {MAX_PDF_BYTES:,} bytes; `--image -` reads one image or PDF from it."
            )
    if not data.tell():
        raise InputError("stdin is empty; `--image -` reads an image file from it.")
    return data.getvalue()
