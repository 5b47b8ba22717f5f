"""PEFT's adapter_config.json: what its kinds of adapters have in common."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

from torch import Tensor

from vlm.artifacts.hugging_face.peft_folder import FILE
from vlm.convert.adapters.patterns import SECONDS
from vlm.errors import ConfigError, first_line, listed, shown
from vlm.layers.adapters.base import AdapterWeights


class PeftKind(Protocol):
    """The configuration of an adapter of one kind, by which its tensors are read."""

    name: ClassVar[str]
    tensors: ClassVar[re.Pattern[str]]  # their names: the module's, and which of its tensors it is

    @classmethod
    def read(cls, folder: Path, values: Mapping[str, Any], modules: Iterable[str]) -> PeftKind:
        """Reads what it says of the adapter's modules. Raises ConfigError for what is not done; it names each
        reason."""
        ...

    def weights(self, module: str, parts: Mapping[str, Tensor]) -> AdapterWeights:
        """Returns what a module's tensors change, in float32. Raises ValueError where they do not fit each other or
        the configuration."""
        ...


def refuse_settings(folder: Path, values: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raises ConfigError for settings that change the maths; `neutral`: their values that ask for nothing."""
    if settings := [f"{key} {values[key]}" for key, nothing in neutral.items() if _matters(values.get(key), nothing)]:
        raise ConfigError(
            f"the adapter {folder} has {listed(settings)}, which is not done here; merge it into its model with"
            " PEFT (merge_and_unload(), save_pretrained()) and load that."
        )


def names_of(values: Any, key: str) -> tuple[str, ...]:
    """Returns a list of names. Raises TypeError for what is none."""
    if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
        raise TypeError(f"{key} {shown(values)}")
    return tuple(values)


def _matters(value: Any, neutral: tuple[Any, ...]) -> bool:
    return value is not None and not any(value == each and type(value) is type(each) for each in neutral)


@contextlib.contextmanager
def invalid_settings(folder: Path, kind: str) -> Iterator[None]:
    """Turns what values of another type or meaning raise into a ConfigError."""
    try:
        yield
    except TimeoutError:
        raise ConfigError(
            f"{folder / FILE} has patterns that take more than {SECONDS} seconds, or too much memory, to match the"
            " adapter's modules; write the modules' names in their place."
        ) from None
    except (ArithmeticError, TypeError, ValueError, AttributeError, re.error) as error:
        raise ConfigError(
            f"{folder / FILE} holds a value that no {kind} has ({first_line(error)}); fetch it again."
        ) from None
