"""An input, as people give it -> its fields, each checked and in its place."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from vlm.artifacts.prompt_tables import TunedPrompt
from vlm.errors import InputError, counted, listed
from vlm.processing.chat.conversation import Conversation
from vlm.processing.inputs.context import InputContext
from vlm.processing.inputs.fields import InputFields, read_table, together
from vlm.processing.inputs.tasks import put_task

ENCODER_KEYS = ("images", "pixel_values", "text", "encoder_input_ids", "encoder_output")
PROMPT_KEYS = ("prompt", "raw_prompt", "messages", "text")
IMAGE_KEYS = ("images", "pixel_values")
LISTS = (list, tuple, range, type(None))


def read_input(source: Any, context: InputContext) -> InputFields:
    """Reads an input. Raises InputError and LengthError for fields that the model does not take, or not together."""
    has_names = isinstance(source, dict | Mapping)  # a dict is known at once, another mapping by its base classes
    fields = InputFields.from_mapping(source) if has_names else _bare_input(source, context)
    put_task(fields, context)
    if (rows := fields.prompt_table) is not None and not isinstance(rows, TunedPrompt):  # which is read once for all
        fields.prompt_table = read_table(rows)
    if fields.input_ids is not None:
        _name_ids(fields, context)
    # of a list each is looked at by the engine, those of a whole call at once
    if not isinstance(fields.encoder_input_ids, LISTS):
        fields.encoder_input_ids = _numbers("encoder_input_ids", fields.encoder_input_ids)
    if not isinstance(fields.decoder_prompt_token_ids, LISTS):
        fields.decoder_prompt_token_ids = _numbers("decoder_prompt_token_ids", fields.decoder_prompt_token_ids)
    _check_names(fields, context)
    if fields.messages is not None:
        fields.messages = read_conversation(fields.messages, context)
    return fields


def named_fields(source: Any, context: InputContext) -> dict[str, Any]:
    """Returns the fields of an input by their names, as they were given. Raises InputError for what is no input."""
    if isinstance(source, dict | Mapping):
        return {name: value for name, value in source.items() if value is not None}
    return _bare_input(source, context).by_name()


def read_conversation(messages: Any, context: InputContext) -> Conversation:
    """Returns what was read of messages, or reads them; LengthError where they are too much for the model."""
    if not isinstance(messages, Conversation):
        return Conversation.from_messages(messages, context.max_tokens)
    messages.check_size(context.max_tokens)
    return messages


def _bare_input(source: Any, context: InputContext) -> InputFields:
    """Returns the input that has one field: a text for a model of texts, else an image; for one that is asked in words,
    its prompt."""
    family, in_words = context.family, context.prompts is not None
    if family.takes_images and not (in_words and isinstance(source, str)):
        return InputFields(images=[source])
    if not isinstance(source, str):
        several = ", give several texts as a list" if isinstance(source, Iterable) else ""
        raise InputError(f"{family.name} takes text; got {type(source).__name__}{several}.")
    return InputFields(prompt=source) if in_words else InputFields(text=source)


def _name_ids(fields: InputFields, context: InputContext) -> None:
    """Names `input_ids`: the encoder's, or a lone decoder's prompt; a prompt table's rows go before them, or where
    ids from the vocabulary's size on are."""
    if not context.has_encoder and context.config.cross_attention:
        raise InputError(f"{context.family.name} takes images, not token ids.")
    name = "encoder_input_ids" if context.has_encoder else "decoder_prompt_token_ids"
    others = ("text", name, *(() if context.prompts is None else ("prompt", "raw_prompt", "messages")))
    if both := fields.among(others):
        raise together(["input_ids", *both])
    ids = _numbers("input_ids", fields.input_ids)
    if not ids:
        raise InputError("the input_ids are empty; give at least one token.")
    rows = context.rows_of(fields.table)
    if min(ids) < 0 or max(ids) >= rows.stop:
        bad = next(token for token in ids if not 0 <= token < rows.stop)
        table = f" and its prompt table of {counted(len(rows), 'row')}" if rows else ""
        raise InputError(f"token id {bad} is outside the vocabulary of {rows.start}{table}; give ids of this model.")
    fields.input_ids = None
    setattr(fields, name, context.with_rows(ids, len(rows)) if rows else ids)


def _numbers(name: str, ids: Any) -> list[int]:
    """Returns token ids as numbers of Python's. Raises InputError where some are none."""
    try:
        return [*map(operator.index, ids)]  # which takes no floats and no texts
    except (TypeError, ValueError, OverflowError, RuntimeError):  # Hugging Face's tokenizers give [1, n]
        raise InputError(f"the {name} are no list of token ids; give those of one input: [5, 6].") from None


def _check_names(fields: InputFields, context: InputContext) -> None:
    """Raises InputError for fields that the model does not take, or not together, whatever they hold."""
    family, has_ids = context.family, fields.encoder_input_ids is not None
    has_image, has_pixels = fields.images is not None, fields.pixel_values is not None
    family.check_inputs(has_text=has_ids or fields.text is not None, has_image=has_image or has_pixels)
    if context.prompts is not None:
        fields.check_one(PROMPT_KEYS)
        fields.check_one(IMAGE_KEYS)
        return
    if fields.raw_prompt is not None or fields.messages is not None:
        unknown = fields.among(("raw_prompt", "messages"))
        raise InputError(f"{family.name} is not asked in words: it takes no {listed(unknown)}.")
    # counted here, as every text comes by: to look for each by its name takes three times as long
    if has_image + has_pixels + (fields.text is not None) + has_ids + (fields.encoder_output is not None) > 1:
        raise together(fields.among(ENCODER_KEYS))
