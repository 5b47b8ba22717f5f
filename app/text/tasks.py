"""What a model must be given for a task: T5 models a prefix in words, multilingual ones language codes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vlm.errors import InputError, listed
from vlm.processing.text.tokenization import no_tokenizer

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.registry.tokenizer_rules import Languages

ToInput = Callable[[str], dict[str, Any]]
NAMES = {"en": "English", "de": "German", "fr": "French", "ro": "Romanian"}  # T5 was trained on these


def plain(text: str) -> dict[str, Any]:
    """Returns a text as it is as an input."""
    return {"text": text}


def translation(
    pipeline: Pipeline,
    source: str | None,
    target: str | None,
    prefix: str | None,
    truncate: bool,
    suffix: str | None = None,
) -> ToInput:
    """Returns what turns a text into an input of the pipeline. InputError where the model needs to be told the
    languages, or cannot be."""
    if pipeline.tokenizer is None:
        raise no_tokenizer()
    if (languages := pipeline.tokenizer.languages) is not None:
        if target is None and not languages.target_in_text and not _begins_in_one(pipeline, languages):
            raise InputError(f"--tgt-lang is missing; this model knows {listed(sorted(languages.ids), 60)}.")
        return _with_codes(languages, source, target, prefix=prefix, truncate=truncate, suffix=suffix)
    if pipeline.family.name == "t5" and prefix is None:
        if source is None or target is None:
            raise InputError("a T5 model is told the languages: give --src-lang en --tgt-lang de (or --prefix).")
        prefix = f"translate {_name(source)} to {_name(target)}: "
    elif source is not None or target is not None:
        if prefix is not None:
            raise InputError("--prefix says the task already; leave --src-lang and --tgt-lang out.")
        _check_pair(pipeline.tokenizer.pair, (source, target))
    return _with_prefix(prefix or "", truncate, suffix)


def _begins_in_one(pipeline: Pipeline, languages: Languages) -> bool:
    """Says whether the model's own settings begin its outputs in a language, as those of mBART-50 many to one do."""
    own = (pipeline.engine.generation.get(name) for name in ("forced_bos_token_id", "decoder_start_token_id"))
    return any(token in languages.ids.values() for token in own)


def _check_pair(pair: tuple[str, str] | None, given: tuple[str | None, str | None]) -> None:
    """Raises InputError where a model of one pair of languages is asked for another, or does not know its own, and
    where it knows none."""
    if pair is None:
        raise InputError(
            "this model knows no languages; leave --src-lang and --tgt-lang out, and say what to do with --prefix."
        )
    if not all(pair):
        raise InputError("this model knows one pair of languages; leave --src-lang and --tgt-lang out.")
    if any(code not in (None, own) for code, own in zip(given, pair, strict=True)):
        raise InputError(f"this model translates {pair[0]} to {pair[1]}; give these to --src-lang and --tgt-lang.")


def translation_of_ids(pipeline: Pipeline, target: str | None) -> ToInput:
    """Returns what goes with token ids, whatever these are: a multilingual model is told the target. InputError as of
    `translation`."""
    if target is None:
        return lambda text: {}
    if pipeline.tokenizer is None or pipeline.tokenizer.languages is None:
        raise InputError("the token ids say the languages to this model; leave --tgt-lang out.")
    if pipeline.tokenizer.languages.target_in_text:
        raise InputError("this model reads the target's language among the token ids; leave --tgt-lang out.")
    pipeline.tokenizer.languages.id(target)
    return lambda text: {"tgt_lang": target}


def summary(
    pipeline: Pipeline, prefix: str | None, truncate: bool, suffix: str | None = None, source: str | None = None
) -> ToInput:
    """Returns what turns a document into an input; `source`: the code of its language (see check_source)."""
    if prefix is None:
        prefix = "summarize: " if pipeline.family.name == "t5" else ""
    plainly = _with_prefix(prefix, truncate, suffix)
    return plainly if source is None else lambda text: {**plainly(text), "src_lang": source}


def check_source(pipeline: Pipeline, source: str | None) -> None:
    """Raises InputError where texts cannot be read, are in a language that the model does not know, or in one that it
    is not told and needs to be."""
    if pipeline.tokenizer is None:
        raise no_tokenizer()
    if (languages := pipeline.tokenizer.languages) is not None:
        languages.around_source(source)
    elif source is not None:
        raise InputError("this model takes no language codes; leave --src-lang out.")


def answer(pipeline: Pipeline, prefix: str | None, truncate: bool, suffix: str | None = None) -> ToInput:
    """Returns what turns a question into an input, whose images go beside it. InputError for a model that is asked
    nothing."""
    able, before = pipeline.capabilities, prefix or ""
    if able.takes_prompt:
        return lambda text: {"prompt": before + text, "truncate": truncate, **_end(suffix)}
    if able.takes_text:
        return _with_prefix(before, truncate, suffix)
    if not (able.takes_question or able.asking_tasks):
        raise InputError(f"{pipeline.family.name} answers no questions; give a model that is asked in words.")
    if truncate or suffix is not None:
        raise InputError(f"--truncate and --suffix are for prompts; {pipeline.family.name} takes none: leave them out.")
    return lambda text: {"question": before + text}


def _with_prefix(prefix: str, truncate: bool, suffix: str | None) -> ToInput:
    before = lambda text: prefix if text.strip() else ""  # noqa: E731 - an empty text stays one, and is refused
    return lambda text: {"text": before(text) + text, "truncate": truncate, **_end(suffix)}


def _end(suffix: str | None) -> dict[str, str]:
    return {} if suffix is None else {"suffix": suffix}


def _with_codes(
    languages: Languages,
    source: str | None,
    target: str | None,
    prefix: str | None,
    truncate: bool,
    suffix: str | None,
) -> ToInput:
    if prefix is not None:
        raise InputError("this model has language codes; give --src-lang and --tgt-lang instead of --prefix.")
    for code in (None if languages.target_in_text else source, target):
        if code is not None:
            languages.id(code)
    fields = {"src_lang": source, "tgt_lang": target, "truncate": truncate, **_end(suffix)}
    return lambda text: {"text": text, **fields}


def _name(language: str) -> str:
    name = NAMES.get(language.lower(), language.capitalize())
    if name not in NAMES.values():
        raise InputError(f"language {language!r} is unknown to T5 models; give {listed(NAMES)}, or --prefix TEXT.")
    return name
