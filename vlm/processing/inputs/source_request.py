"""Requests to a decoder that attends to an encoder: a text, an image or the encoder's output, and where the output
begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vlm.errors import InputError, LengthError
from vlm.processing.inputs.context import InputContext
from vlm.processing.inputs.fields import InputFields, check_text, read_rows, together
from vlm.processing.text.tokenization import no_tokenizer
from vlm.requests.request import Request, Stops
from vlm.requests.sampling_params import SamplingParams


def source_request(
    fields: InputFields, context: InputContext, *, params: SamplingParams, stops: Stops | None
) -> Request:
    """Makes the request of an input that is not asked in words. Raises InputError and LengthError."""
    image, ids = context.images.of_encoder(fields), fields.encoder_input_ids
    if fields.text is not None:
        ids = _source_ids(fields, context)
    ids = None if ids is None else tuple(ids)
    if fields.tgt_lang is not None:
        params = _towards(fields.tgt_lang, context, params)
    return Request(
        _decoder_prompt(fields, context),
        encoder_image=image,
        encoder_input_ids=ids,
        encoder_output=None if fields.encoder_output is None else read_rows(fields.encoder_output),
        params=params,
        stops=stops,
        prompt_table=fields.table,
    )


def texts_as_given(sources: Iterable[Any]) -> list[str]:
    """Returns the texts of inputs that are tokenized as they stand: neither cut nor with something after them."""
    as_given = (s for s in sources if not isinstance(s, dict) or _is_unset(s.get("truncate"), s.get("suffix")))
    texts = (source.get("text") if isinstance(source, dict) else source for source in as_given)
    return [text for text in texts if isinstance(text, str)]


def _is_unset(*values: Any) -> bool:
    """Says whether fields say nothing; an array, which nobody has looked at yet, cannot be asked that."""
    return all(value is None or value is False or (isinstance(value, str) and not value) for value in values)


def _decoder_prompt(fields: InputFields, context: InputContext) -> tuple[int, ...]:
    """Returns the tokens that a decoder starts from: those of the input, or its start token, of the language that is
    written where a model starts from it, and the tokens of the prompt."""
    start, languages = context.start_of(fields), context.languages
    if fields.decoder_prompt_token_ids is not None:
        if fields.prompt:
            raise together(["prompt", "decoder_prompt_token_ids"])
        return start
    first = None
    if fields.tgt_lang is not None and languages is not None:
        start = (languages.id(fields.tgt_lang),) if languages.starts_output else start
        first = languages.first_token(fields.tgt_lang)
    check_text("prompt", fields.prompt)
    if not fields.prompt:
        return start
    if context.tokenizer is None:
        said = "this engine has no tokenizer; give decoder_prompt_token_ids instead of a prompt."
        raise InputError(said, settings=("decoder_prompt_token_ids",))
    context.tokenizer.check_length(fields.prompt, context.max_seq_len)
    # it is forced as the first one after the start alone
    return (*start, *(() if first is None else (first,)), *context.tokenizer.encode(fields.prompt))


def _source_ids(fields: InputFields, context: InputContext) -> list[int]:
    """Returns the encoder's tokens of a text, after the rows of its prompt table."""
    text, limit, tokenizer = fields.text, context.max_encoder_len, context.tokenizer
    if not isinstance(text, str) or not text.strip():
        raise InputError(
            "the text is empty; give at least one word." if isinstance(text, str) else "text must be a string."
        )
    if tokenizer is None:
        raise no_tokenizer()
    rows = context.rows_of(fields.table)
    cut_at = fields.truncation(max(0, limit - len(rows)))
    text = context.bounded(text) if cut_at is None else tokenizer.shortened(text, cut_at)
    options = {"language": fields.src_lang, "target": fields.tgt_lang, "suffix": context.suffix(fields)}
    ids = [*rows, *tokenizer.encode_source(text, limit=cut_at, **options)]
    if len(ids) > limit:
        raise LengthError(
            f"the text has {len(ids)} tokens, the engine was built for {limit}; shorten it",
            context.shorter_or_longer(len(ids)),
            settings=("max_encoder_input_len", "truncate"),
        )
    return ids


def _towards(language: str, context: InputContext, params: SamplingParams) -> SamplingParams:
    """Returns the settings with the target's token as the first one of the output, where the model does not start from
    it."""
    if context.languages is None:
        raise InputError("this model takes no language codes; name the languages in the text, as it was trained.")
    token = context.languages.first_token(language)
    return params if token is None else replace(params, forced_bos_token_id=token)
