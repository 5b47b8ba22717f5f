"""Errors whose sentences call settings as their reader does."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextvars import ContextVar

from vlm.errors import VlmError

flags: ContextVar[Mapping[str, str]] = ContextVar("flags")  # of the verb that runs, by its settings


def settings_of(error: Exception) -> tuple[str, ...]:
    """Returns the settings that an error's sentence names, the one at fault first."""
    return error.settings if isinstance(error, VlmError) else ()


def renamed(sentence: str, error: Exception, names: Mapping[str, str]) -> str:
    """Returns an error's sentence in which its settings have other names. `names`: by those of the fields."""
    return with_names(sentence, {name: names[name] for name in names if name in settings_of(error)})


def with_names(sentence: str, names: Mapping[str, str]) -> str:
    """Returns a sentence in which names are replaced by others. Where one stands between backticks, as one does that is
    a word of the sentence, too, it is replaced there alone, and these go. Parts of paths and longer names are none."""
    if not names:
        return sentence
    own = "|".join(
        f"`{name}`" if f"`{name}`" in sentence else rf"(?<![\w/-]){re.escape(name)}(?![\w/-])" for name in names
    )
    return re.sub(own, lambda found: names[found[0].strip("`")], sentence)


def with_flags(error: VlmError) -> str:
    """Returns an error's sentence in which settings are the options of the verb that runs."""
    return sentence_with_flags(str(error), settings_of(error))


def sentence_with_flags(sentence: str, settings: Collection[str]) -> str:
    """Returns the sentence of an error, which named these settings, in the same way."""
    return with_names(sentence, {name: flag for name, flag in flags.get({}).items() if name in settings})
