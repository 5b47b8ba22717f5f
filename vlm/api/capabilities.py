"""What a loaded model takes and gives, and how much of it: asked here, whatever it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlm.engine.leading import Engine
    from vlm.processing.processor import Processor


@dataclass(frozen=True)
class Capabilities:
    """One loaded model's."""

    takes_images: bool
    takes_text: bool  # a source for its encoder, or a prompt
    takes_prompt: bool  # a prompt in words, about images or not
    one_image_a_prompt: bool  # each prompt is a task, of an image
    supports_chat: bool  # conversations: it has a template for them
    takes_question: bool  # in words, about an image: drawn on it, or where the output begins
    tasks: tuple[str, ...]  # of the model's own, which an input may name
    asking_tasks: tuple[str, ...]  # those of them that answer a question
    reads_pages_in_steps: bool  # an image without words is a page, which is read part by part
    has_tokenizer: bool
    has_text_encoder: bool  # token ids go to an encoder; else they are the decoder's prompt
    generates: bool  # False: an encoder alone is loaded
    max_batch_size: int  # sequences that are decoded at once
    max_seq_len: int  # tokens of a decoder, its prompt included; 0 without one
    max_encoder_input_len: int  # rows of an encoder; 0 without one
    max_input_len: int  # tokens of a decoder, or of an encoder alone
    max_prompt_tokens: int  # of a text, whatever else a request has
    vocab_size: int  # of the ids that a text becomes
    eos_token_ids: tuple[int, ...]  # each ends an output

    @classmethod
    def from_loaded(cls, processor: Processor, engine: Engine) -> Capabilities:
        return cls(
            takes_images=processor.family.takes_images,
            takes_text=processor.family.takes_text,
            takes_prompt=processor.family.takes_prompt,
            one_image_a_prompt=processor.family.prompt_tasks is not None,
            supports_chat=processor.supports_chat,
            takes_question=processor.question_use is not None,
            tasks=tuple(processor.tasks.prompts) if processor.tasks is not None else (),
            asking_tasks=processor.tasks.asking if processor.tasks is not None else (),
            reads_pages_in_steps=processor.page_steps is not None,
            has_tokenizer=processor.tokenizer is not None,
            has_text_encoder=processor.encoder is not None,
            generates=processor.generates,
            max_batch_size=engine.limits.max_batch_size,
            max_seq_len=engine.limits.max_seq_len,
            max_encoder_input_len=engine.limits.max_encoder_input_len,
            max_input_len=engine.limits.max_input_len,
            max_prompt_tokens=processor.request_builder.max_prompt_tokens,
            vocab_size=processor.vocab_size,
            eos_token_ids=engine.eos_token_ids,
        )

    @property
    def id_field(self) -> str:
        """Returns the field of an input that token ids go to."""
        return "encoder_input_ids" if self.has_text_encoder else "decoder_prompt_token_ids"
