"""What reads an engine's inputs and outputs; it needs the manifest and the processor's files, no weights."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from vlm.artifacts.prompt_tables import PromptTables
from vlm.config import ModelConfig, VisionConfig
from vlm.errors import InputError, VlmWarning
from vlm.processing.chat.prompts import Prompts
from vlm.processing.inputs.context import InputContext
from vlm.processing.inputs.images import ImageInputs
from vlm.processing.inputs.questions import drawn_question
from vlm.processing.inputs.request_builder import RequestBuilder
from vlm.processing.media.image_processor import ImageProcessor, ProcessorSource
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry import catalogs
from vlm.registry.images.processor import QuestionUse
from vlm.registry.page_steps import PageSteps
from vlm.registry.role_configs import RoleConfigs
from vlm.registry.spec import FamilySpec
from vlm.registry.tasks import TaskPrompts
from vlm.requests.loops import loop_period, without_loop
from vlm.requests.pixels import ImagePixels

if TYPE_CHECKING:
    from vlm.artifacts.native.engine_dir import EngineDir


@dataclass(frozen=True)
class ProcessorFiles:
    """What an engine's processor files come to. To read them takes seconds, most of them for imports, and neither
    weights nor a device: a thread may do so beside the loading of both."""

    tokenizer: Tokenizer | None
    processor_source: ProcessorSource | None
    image_processor: ImageProcessor | None

    @classmethod
    def read(cls, engine: EngineDir) -> ProcessorFiles:
        """Raises EngineError for damaged ones."""
        folder, source = engine.processor_dir, processor_source(engine)
        tokenizer = Tokenizer.from_dir(folder, catalogs.family(engine.family).tokenizer_rules) if folder else None
        return cls(tokenizer, source, source.load() if source else None)


@dataclass(frozen=True)
class Processor:
    """Turns one engine's inputs into requests and its outputs into texts. Used by several threads at once."""

    family: FamilySpec
    config: ModelConfig  # the decoder's, or that of an encoder alone
    encoder: ModelConfig | None
    tokenizer: Tokenizer | None
    processor_source: ProcessorSource | None  # where another process finds the image processor
    images: ImageInputs
    prompts: Prompts | None  # of a family that is asked in words
    prompt_tables: PromptTables | None  # of tasks that inputs may name
    request_builder: RequestBuilder
    generates: bool = True  # False: an encoder alone is loaded
    page_steps: PageSteps | None = None  # how it reads an image without words, as a page; None: in one request

    @classmethod
    def from_engine(
        cls,
        engine: EngineDir,
        adapters: Mapping[str, int] = MappingProxyType({}),
        prompt_tables: PromptTables | None = None,
        files: ProcessorFiles | None = None,
    ) -> Processor:
        """Returns the processor of an engine; EngineError for a damaged one. `adapters`: the numbers of those that
        requests may name; `prompt_tables`: of tasks that they may name; `files`: what has been read already."""
        configs, files = catalogs.configs_of(engine), files or ProcessorFiles.read(engine)
        _check_image_size(engine, files.image_processor)
        context = _input_context(engine, configs, files, prompt_tables=prompt_tables)
        processor = cls(
            family=context.family,
            config=context.config,
            encoder=configs.encoder,
            tokenizer=files.tokenizer,
            processor_source=files.processor_source,
            images=context.images,
            prompts=context.prompts,
            prompt_tables=prompt_tables,
            request_builder=RequestBuilder(context, adapters),
            generates=engine.generates,
            page_steps=page_steps(engine, files.tokenizer),
        )
        if prompt_tables is not None:
            prompt_tables.check_width(processor.prompt_width)
        return processor

    @property
    def vision(self) -> VisionConfig | None:
        return self.images.vision

    @property
    def image_processor(self) -> ImageProcessor | None:
        return self.images.image_processor

    @property
    def vocab_size(self) -> int:
        """Returns the size of the vocabulary that texts are read with."""
        return (self.encoder or self.config).vocab_size

    @property
    def prompt_width(self) -> int:
        """Returns how many values a row of a prompt table has."""
        return (self.encoder or self.config).embedding_size

    @property
    def supports_chat(self) -> bool:
        """Says whether the model has a template for conversations."""
        return self.prompts is not None and self.prompts.template is not None

    @property
    def image_source(self) -> ProcessorSource:
        """Raises InputError for a model of texts."""
        if self.processor_source is None:
            raise InputError(f"{self.family.name} takes text, not images; leave the images out, or ask another model.")
        return self.processor_source

    @property
    def question_use(self) -> QuestionUse | None:
        """Returns what becomes of a question about an image; None: the settings of images ask for none."""
        return self.images.question_use

    @property
    def tasks(self) -> TaskPrompts | None:
        """Returns the tasks of the model's own, which an input names; None of a model without."""
        return self.family.prompt_tasks or (self.tokenizer.tasks if self.tokenizer is not None else None)

    @property
    def takes_question(self) -> bool:
        """Says whether an input may have a `question`."""
        return self.question_use is not None or (self.tasks is not None and bool(self.tasks.asking))

    def drawn_question(self, source: Mapping[str, Any]) -> str | None:
        """Returns the question that is to be drawn on an input's images, before they are read. Raises InputError for
        one that is missing, empty or too long."""
        return drawn_question(source.get("question"), self.question_use)

    def with_pixels(self, source: dict[str, Any], images: Items[Items[ImagePixels]]) -> dict[str, Any]:
        """Turns an input of `Pipeline.generate` and its images, of each its pages, into the input that has them in it.

        Raises InputError and LimitError for more images than the model reads.
        """
        if "messages" in source:
            conversation = self.request_builder.read_conversation(source["messages"])
            source = {**source, "messages": conversation.with_pages([len(x) for x in images])}
        self.check_image_count(sum(map(len, images)))
        pixels = [page for pages in images for page in pages]
        if self.question_use is QuestionUse.DRAWN:  # it has been
            source = {key: value for key, value in source.items() if key != "question"}
        if self.family.takes_prompt or self.vision is None:
            return {**source, "pixel_values": pixels} if pixels else source
        return {**source, "pixel_values": pixels[0]}

    def check_image_count(self, count: int) -> None:
        """Raises InputError and LimitError for more images than the model reads, before any of them is looked at."""
        if count and not self.family.takes_images:
            raise InputError(f"{self.family.name} takes text, not images; leave the images out, or load another model.")
        self.request_builder.check_images(count)
        if count != 1 and not (self.family.takes_prompt or self.vision is None):
            raise InputError(f"{self.family.name} reads one image a request, got {count}; send a request for each.")

    def text_of(self, token_ids: list[int]) -> str:
        """Returns what a sequence's generated tokens say, post-processed; of a loop its first turn. Raises InputError
        for an engine without a tokenizer."""
        if self.tokenizer is None:
            raise InputError("this engine has no tokenizer; take the token ids instead of a text.")
        period = loop_period(token_ids) if self.family.loop_detection else None
        ids = without_loop(token_ids, period) if period else token_ids
        return self.family.postprocess(self.tokenizer.decode(ids))


def _check_image_size(engine: EngineDir, image_processor: ImageProcessor | None) -> None:
    """Warns of an image processor whose images have another size than the model takes."""
    if image_processor is not None and not image_processor.fits():
        warnings.warn(
            f"{engine.path.name}: its image processor makes images of another size than the model takes, so that"
            " images are refused; convert the model again with the preprocessor_config.json that belongs to it.",
            VlmWarning,
            stacklevel=6,
        )


def _input_context(
    engine: EngineDir, configs: RoleConfigs, files: ProcessorFiles, *, prompt_tables: PromptTables | None
) -> InputContext:
    family, encoder, tokenizer, prompts = catalogs.family(engine.family), configs.encoder, files.tokenizer, None
    vocab_size = (encoder or configs.writer).vocab_size
    if (form := family.chat_format) is not None:
        prompts = Prompts.load(form, tokenizer, engine.processor_dir, vocab_size, with_images=family.takes_images)
    return InputContext(
        family=family,
        config=configs.writer,
        generation=engine.generation,
        tokenizer=tokenizer,
        images=ImageInputs(family.name, configs.visual, files.image_processor),
        prompts=prompts,
        has_encoder=encoder is not None,
        vocab_size=vocab_size,
        max_encoder_len=engine.limits.max_encoder_input_len,
        max_seq_len=engine.limits.max_seq_len,
        prompt_tables=prompt_tables,
        encoder_positions=None if encoder is None else encoder.position_limit,
    )


def processor_source(engine: EngineDir) -> ProcessorSource | None:
    """Returns what an engine's image processor is made from; None of one that takes no images."""
    vision = catalogs.configs_of(engine).visual
    if vision is None:
        return None
    height, width = vision.image_size
    specs = catalogs.family(engine.family).image_processors
    return ProcessorSource(engine.processor_dir, specs, (height, width), vision.fixed_size)


def page_steps(engine: EngineDir, tokenizer: Tokenizer | None) -> PageSteps | None:
    """Returns the steps in which an engine's model reads pages: of a publication whose tokens its tokenizer has, or
    whose name its folder had; None of others."""
    name = engine.manifest.source.lower()
    for steps in catalogs.family(engine.family).page_steps if engine.generates else ():
        if name.startswith(steps.name.lower()) or (tokenizer is not None and tokenizer.has(steps.tokens)):
            return steps
    return None
