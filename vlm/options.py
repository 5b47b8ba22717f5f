"""What a field of a configuration is to people: the command line, the servers' requests and the docs follow from it."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, NoneType, UnionType
from typing import Any

from vlm.errors import InputError, cut, shown
from vlm.ranges import Allowed, OfType, Range

KEY = "option"  # in a field's metadata


@dataclass(frozen=True)
class Offer:
    """How the requests of a server's protocol offer an option."""

    name: str | None = None  # where it is not called after the field
    allowed: Range | None = None  # where the protocol takes other numbers than the field
    read: Callable[[Any], Any] | None = None  # what a request holds -> the value
    completions: str | None = None  # what /v1/completions calls it, where /v1/chat/completions has another name


@dataclass(frozen=True)
class Option:
    """One option: its help, and what the field's own name, type and default do not say."""

    help: str
    flags: tuple[str, ...] = ()  # of the command line, where it is not called after the field
    cli: bool = True  # is it one of the command line?
    default: str | None = None  # in words
    read: Callable[[Any], Any] | None = None  # what the command line gets -> the value; None: by the field's type
    cli_type: type = str  # with `read`: what the command line gets
    metavar: str | None = None  # what the command line's help calls a value; "...": several may follow one flag
    env: str | None = None  # a variable that stands for the flag
    allowed: Allowed | None = None
    check: Callable[[Any], None] | None = None  # raises InputError for what `allowed` cannot say
    convert: Callable[[Any], Any] | None = None  # the forms that callers give -> the field's; None: lists to tuples
    section: str | None = None  # of docs/options.md
    openai: Offer | None = None  # None: not offered there
    kserve: Offer | None = None
    model_key: str | None = None  # the key of generation_config.json that sets it
    drawn: bool = False  # does that key count for draws alone?
    sets: tuple[str, ...] = ()  # limits of engines, as fields of BuildConfig, that follow from it
    only_with: str | None = None  # the field that it goes with: nothing comes of it while that has its default

    def flag(self, name: str) -> str:
        """Returns what the command line calls it, the option of a field of this name."""
        return self.flags[0] if self.flags else default_flag(name)


def option(
    value: Any = dataclasses.MISSING, /, help: str = "", *, factory: Any = dataclasses.MISSING, **more: Any
) -> Any:
    """Returns a dataclass field with this default value that is an option; `more` goes to Option."""
    return dataclasses.field(default=value, default_factory=factory, metadata={KEY: Option(help, **more)})


def same_option(config: type, name: str, **changes: Any) -> Any:
    """Returns a dataclass field that is the same option as another's, with the same default value, but for what
    changes."""
    [field] = [field for field in dataclasses.fields(config) if field.name == name]
    own = dataclasses.replace(field.metadata[KEY], **{n: v for n, v in changes.items() if n != "value"})
    return dataclasses.field(default=changes.get("value", field.default), metadata={KEY: own})


@functools.cache
def options_of(config: type) -> Mapping[str, Option]:
    """Returns the options of a dataclass by its fields' names."""
    options = {field.name: field.metadata[KEY] for field in dataclasses.fields(config) if KEY in field.metadata}
    return MappingProxyType(options)


@functools.cache
def defaults_of(config: type) -> Mapping[str, Any]:
    """Returns the default values of a dataclass's options by their fields' names; those without one are left out."""
    defaults = {}
    for field in dataclasses.fields(config):
        if field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
    return MappingProxyType({name: value for name, value in defaults.items() if name in options_of(config)})


def without_none(hint: Any) -> Any:
    """Returns a field's type, None aside. TypeError where several are left."""
    kinds = typing.get_args(hint) if isinstance(hint, UnionType) else (hint,)
    others = [kind for kind in kinds if kind is not NoneType]
    if len(others) != 1:
        raise TypeError(f"an option of type {hint} needs a function that reads it")
    return others[0]


def flag_of(config: type, name: str) -> str:
    """Returns what the command line calls a field."""
    own = options_of(config).get(name)
    return own.flag(name) if own else default_flag(name)


def by_flag(config: Any, *names: str) -> dict[str, Any]:
    """Returns values of a dataclass by what the command line calls their fields."""
    return {flag_of(type(config), name): getattr(config, name) for name in names}


def default_flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def errors_of(config: Any, separator: str = ";", *, flags: bool = False) -> Iterator[tuple[str, str]]:
    """Yields (field, what is wrong with it, and what is allowed) of each value of a dataclass that its option does not
    take; None and defaults are taken by every option. `flags`: options are called as on the command line."""
    for name, default, allowed in _limited(type(config)):
        value = getattr(config, name)
        if value is default or value is None:  # as most are, of each request
            continue
        if error := allowed.error(value):
            label = flag_of(type(config), name) if flags else name
            yield name, f"{label} is {shown(value) if isinstance(value, str) else cut(value)}{separator} {error}"


def check_limits(config: Any, *, flags: bool = False) -> None:
    """Raises InputError for the first value of a dataclass that its option does not take."""
    for name, error in errors_of(config, flags=flags):
        raise InputError(f"{error}.", settings=(name,))


def check_values(config: type, values: Mapping[str, Any]) -> None:
    """Raises InputError for the first value that its option does not take. `values`: by the names of a dataclass's
    options."""
    for name, _, allowed in _limited(config):
        if name in values and (error := allowed.error(values[name])):
            raise InputError(f"{name} is {shown(values[name])}; {error}.", settings=(name,))


def check_types(config: type, values: Mapping[str, Any]) -> None:
    """Raises InputError for the first value that is not of its field's type. `values`: by the names of a dataclass's
    options."""
    types = _types(config)
    for name, value in values.items():
        if error := types[name].error(value):
            raise InputError(f"{name} is {shown(value)}; {error}.", settings=(name,))


def converted(config: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a dataclass's options, by their names, in the form that their fields have. InputError for
    one that cannot have it."""
    options, found = options_of(config), {}
    for name, value in values.items():
        try:
            found[name] = (options[name].convert or to_tuples)(value)
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            must = f"it must be {_types(config)[name]}"
            raise InputError(f"{name} is {shown(value)}; {must}.", settings=(name,)) from None
    check_types(config, found)
    return found


def to_tuples(value: Any) -> Any:
    """Returns lists as tuples, at every depth."""
    return tuple(to_tuples(part) for part in value) if isinstance(value, list | tuple) else value


@functools.cache
def _types(config: type) -> Mapping[str, OfType]:
    hints = typing.get_type_hints(config)
    return MappingProxyType({name: OfType(hints[name]) for name in options_of(config)})


def check_each(config: Any) -> None:
    """Calls the checks of a dataclass's options where a value is not the default. Raises InputError."""
    for name, default, check in _checked(type(config)):
        if (value := getattr(config, name)) is not default:
            try:
                check(value)
            except InputError as error:
                error.settings = (name,)
                raise


@functools.cache
def _limited(config: type) -> tuple[tuple[str, Any, Allowed], ...]:
    options, defaults = options_of(config), defaults_of(config)
    return tuple((n, defaults.get(n), own.allowed) for n, own in options.items() if own.allowed is not None)


@functools.cache
def _checked(config: type) -> tuple[tuple[str, Any, Callable[[Any], None]], ...]:
    options, defaults = options_of(config), defaults_of(config)
    return tuple((n, defaults.get(n), own.check) for n, own in options.items() if own.check is not None)
