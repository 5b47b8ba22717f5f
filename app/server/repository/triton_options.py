"""What a repository is exported with; the command line takes its defaults from here."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlm.build.store import LIMITS
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import ConfigError, InputError
from vlm.options import options_of, without_none
from vlm_app.core.load_options import RUNTIME, LoadOptions

ENSEMBLE, BEFORE, ENGINE, AFTER = "ensemble", "preprocessing", "engine", "postprocessing"
CONFIG = "config.pbtxt"  # in a model's folder
ENGINE_FOLDER, FRONTEND_FOLDER = "engine", "frontend"  # in that of a version
KINDS = {"auto": "KIND_AUTO", "cpu": "KIND_CPU", "cuda": "KIND_GPU"}

_TRITONS = ("device", "devices", "max_batch_size")  # which Triton has words of its own for
# what an engine's configuration says of its loading, as parameters: how it is run, and limits below its own
PARAMETERS = tuple(name for name in (*RUNTIME, *LIMITS) if name not in _TRITONS)
_WORDS = {"true": True, "false": False}


def parameters_of(options: LoadOptions) -> dict[str, dict[str, str]]:
    """Returns the parameters of a Triton configuration that say the same."""
    values = {**options.build, **options.runtime}
    return {name: {"string_value": _word(values[name])} for name in PARAMETERS if name in values}


def options_from_words(words: Mapping[str, str]) -> LoadOptions:
    """Reads parameters by name. Raises ConfigError for a value that is not allowed."""
    return LoadOptions.from_dict({name: _value(name, word) for name, word in words.items()})


def _value(name: str, word: str) -> Any:
    """Reads a parameter as its field's type. Raises ConfigError."""
    config = RuntimeConfig if name in RUNTIME else BuildConfig
    kind = without_none(typing.get_type_hints(config)[name])
    if typing.get_origin(kind) is tuple:
        return tuple(each.strip() for each in word.split(","))
    read = options_of(config)[name].read or (_switch if kind is bool else kind)
    try:
        return read(word)
    except ValueError:
        expected = "true or false" if kind is bool else "a number"
        raise ConfigError(f"the parameter {name} is {word!r}; it must be {expected}.") from None


def _word(value: Any) -> str:
    """Returns what `_value` reads."""
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _switch(word: str) -> bool:
    """Reads true or false. ValueError for anything else."""
    if word.lower() not in _WORDS:
        raise ValueError
    return _WORDS[word.lower()]


@dataclass(frozen=True)
class ExportConfig:
    name: str
    max_batch_size: int  # rows of a request, and sequences decoded at once
    instances: int = 1  # processes that each load the engine
    load: LoadOptions = field(default_factory=LoadOptions)  # how each of them loads it
    stream: bool = False  # answers come as they are decoded (Triton: decoupled)

    def __post_init__(self) -> None:
        if not self.name or self.name != self.name.strip(". ") or "/" in self.name:
            raise InputError(f"{self.name!r} is no name of a model; give a folder's name with --name.")
        if self.instances < 1:
            raise InputError(f"instances is {self.instances}; it must be at least 1.")
        kind, _, number = self.load.device.partition(":")
        if kind not in KINDS or (number and (kind != "cuda" or not number.isdigit())):
            raise InputError(f"device is {self.load.device!r}; allowed are auto, cpu, cuda and cuda:N.")

    @property
    def folders(self) -> dict[str, str]:
        """Returns the folders of the ensemble's parts, by what they do."""
        return {part: f"{self.name}-{part}" for part in (BEFORE, ENGINE, AFTER)}
