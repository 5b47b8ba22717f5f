"""What a user can get wrong, one sentence each: what was got, what is allowed, what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

NAME_A_PLACE = "name a file or a folder (. is this one)"  # in place of an empty path
MOST_LISTED = 500  # characters of what a list names: of a path, a layer, a reason
MOST_FOREIGN = 300  # characters of another library's sentence, which may hold a whole file's value


class VlmError(Exception):
    """Base of every error that is the caller's to mend; the command line prints it alone and exits with 2.

    `kind`, a word or two, sorts it in a job's report. `settings`: fields that the sentence names, the one at fault
    first. The command line and the servers' protocols have names of their own for them. `sent_names`: what a request
    called such a name, where its protocol has several. `is_about_input`: it is of a request's text, ids or images
    unless it names a setting.
    """

    kind = "other"
    sent_names: Mapping[str, str] = MappingProxyType({})
    is_about_input = False

    def __init__(self, message: str, kind: str | None = None, *, settings: tuple[str, ...] = ()):
        super().__init__(message)
        self.settings = settings
        if kind:
            self.kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        """Has copies, such as another process gets, say the same: to make one anew would word it again."""
        return type(self).__new__, (type(self), *self.args), self.__dict__


class InputError(VlmError):
    """An argument or input value is outside what is allowed."""


class ImageError(InputError):
    """A file is missing, is not an image, is damaged, or is over the pixel limit."""

    kind = "damaged"


class DocumentError(InputError):
    """A PDF is missing, encrypted or broken, or a page range lies outside it."""

    kind = "damaged"


class LimitError(InputError):
    """A request asks for more than the engine was built for.

    `remedy`: what whoever runs the engine can do, too; `for_clients` of a server says nothing of it.
    """

    def __init__(self, message: str, remedy: str = "", *, settings: tuple[str, ...] = ()):
        self.for_clients = f"{message.removesuffix('.')}."
        super().__init__(f"{message}, {remedy}." if remedy else self.for_clients, settings=settings)


class LengthError(LimitError):
    """An input, or what is to come after it, is longer than the engine was built for."""


class AdapterNotFoundError(InputError):
    """A request names an adapter that is not loaded. `for_clients` of a server does not say how the engine's own user
    loads one."""

    def __init__(self, message: str):
        """`message`: without a full stop."""
        self.for_clients = f"{message}."
        super().__init__(f"{message}; load one with lora NAME=FOLDER.", settings=("lora",))


class ModelNotFoundError(VlmError):
    """`--model` names nothing that is packaged, on disk or on the Hub."""


class ConfigError(VlmError):
    """A model configuration holds fields that are unknown or unsupported and that change the maths."""


class UnsupportedModelError(ConfigError):
    """A model is recognized as of a kind that is not served."""


class CheckpointError(VlmError):
    """Weights are missing, superfluous, of the wrong shape, or unreadable."""


class EngineError(VlmError):
    """An engine directory is damaged, edited, or built for something else."""


class OutOfMemoryError(VlmError):
    """The device cannot hold the model or its cache."""


class VlmWarning(UserWarning):
    """What goes on, though not as the caller may expect; the command line prints it as one line."""


def built_for(setting: str, size: int, most: int | None = None) -> str:
    """Returns how an engine holds more, by a setting of its build; "" where the model allows `most` and that is less.
    An engine that is given is not built again."""
    fits = most is None or size <= most
    return f"or give {setting} {size}, to vlm build where the model is an engine" if fits else ""


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Returns a number of things: `1 page`, `2,000 pages`; `noun`: one of them, `plural`: where it takes more than an
    s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def counted_given(count: int, noun: str) -> str:
    """Returns how many things came with a request: `1 image was given`, `2 images were given`."""
    return f"{counted(count, noun)} {'was' if count == 1 else 'were'} given"


def shown(value: object) -> str:
    """Returns a value that a file or caller gave, as a sentence holds it: it may be of any length."""
    return cut(repr(value))


def cut(value: object, limit: int = 100) -> str:
    """Returns a value's first characters, without quotation marks: all of a name that has so many."""
    text = str(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def listed(items: Iterable[object], limit: int = 8) -> str:
    """Returns a sentence-sized list: `a, b, c and 5 more`."""
    named = [*items]
    rest = len(named) - limit
    return ", ".join(cut(item, MOST_LISTED) for item in named[:limit]) + (f" and {rest} more" if rest > 0 else "")


def meant(name: str, names: Iterable[str]) -> str:
    """Returns the words that name what may have been meant by an unknown name, of nearly the same spelling; "" where
    none is near."""
    known = [*names]
    if len(name) > 2 * max(map(len, known), default=0):  # none is near, and to compare takes time by the name's length
        return ""
    near = difflib.get_close_matches(name, known, 2, 0.75)
    return f" (is it {' or '.join(near)}?)" if near else ""


def first_line(error: BaseException) -> str:
    """Returns what another library's error says in its first line, or its name: for a sentence of ours."""
    return cut((str(error) or type(error).__name__).splitlines()[0].rstrip("."), MOST_FOREIGN)
