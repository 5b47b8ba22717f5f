"""What reads an engine's inputs and outputs; it needs the manifest and the processor's files, no weights."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlm import registry
from vlm.config import Config, ModelConfig, VisionConfig
from vlm.inputs import InputReader
from vlm.ops.advance import loop_period
from vlm.outputs import without_loop
from vlm.processing.image_processor import ImageProcessor, ProcessorSource
from vlm.processing.prompts import Prompts
from vlm.processing.tokenization import Tokenizer
from vlm.registry import FamilySpec

if TYPE_CHECKING:
    from vlm.compile.engine_dir import EngineDir


@dataclass(frozen=True)
class Frontend:
    """Of one engine. Used by several threads at once."""

    family: FamilySpec
    config: ModelConfig  # the decoder's
    encoder: ModelConfig | None
    vision: VisionConfig | None
    tokenizer: Tokenizer | None
    processor_source: ProcessorSource | None  # where another process finds the image processor
    image_processor: ImageProcessor | None
    inputs: InputReader
    postprocess: Callable[[str], str]

    @classmethod
    def of(cls, engine: EngineDir) -> Frontend:
        """Raises EngineError for a damaged processor."""
        family, configs = registry.family(engine.family), _configs(engine)
        tokenizer = Tokenizer.from_dir(engine.processor_dir) if engine.processor_dir else None
        config, encoder, vision = configs["decoder"], configs.get("encoder"), configs.get("visual")
        source = (
            ProcessorSource(engine.processor_dir, family.image_processor, tuple(vision.image_size)) if vision else None
        )
        processor = source.load() if source else None
        vocab_size = (encoder or config).vocab_size
        prompts = None
        if family.prompt is not None:
            features = vision.num_features if vision else 0
            prompts = Prompts.load(family.prompt, tokenizer, engine.processor_dir, vocab_size, features)
        inputs = InputReader(
            family,
            config,
            vision,
            engine.generation,
            tokenizer,
            processor,
            prompts,
            engine.build.max_encoder_input_len or 0,
            encoder is not None,
            encoder and vocab_size,
        )
        postprocess = _imported(family.postprocess) if family.postprocess else str
        return cls(family, config, encoder, vision, tokenizer, source, processor, inputs, postprocess)

    def text_of(self, token_ids: list[int]) -> str:
        """What a sequence's generated tokens say, post-processed; of a loop its first turn."""
        period = loop_period(token_ids) if self.family.loop_detection else None
        shown = without_loop(token_ids, period) if period else token_ids
        return self.postprocess(self.tokenizer.decode(shown))


def _configs(engine: EngineDir) -> dict[str, Config]:
    """By role."""
    return {
        role: registry.model_spec(model).config.from_dict(engine.config(role)) for role, model in engine.roles.items()
    }


def _imported(target: str) -> Callable[[str], str]:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
