"""The fields of an input: what people give, as a value with a name for each part of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlm.artifacts.prompt_tables import TunedPrompt
from vlm.errors import InputError, listed, meant
from vlm.requests.prompt_table import PromptTable

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)  # not frozen: to copy it for each field that a step changes would take longer than all the steps
class InputFields:
    """One input; None: it has no such field. Only who reads it (vlm.processing.inputs.reader) changes it: what a field
    stands for takes its place."""

    images: Any = None
    text: Any = None
    suffix: str | None = None
    input_ids: Any = None  # of the encoder, or of the prompt of a decoder alone; read: one of the two below
    src_lang: str | None = None
    tgt_lang: str | None = None
    truncate: Any = None
    prompt: Any = None
    raw_prompt: Any = None
    messages: Any = None  # read: a Conversation
    continue_final_message: bool | None = None
    prompt_table: Any = None  # [rows, hidden]; read: a PromptTable or TunedPrompt
    task: Any = None  # read: None, but of a model that is told of it in its prompt
    question: Any = None
    pixel_values: Any = None
    encoder_output: Any = None
    encoder_input_ids: Any = None
    decoder_prompt_token_ids: Any = None
    lora: Any = None

    @classmethod
    def from_mapping(cls, source: Mapping[str, Any]) -> InputFields:
        """Raises InputError for names that are no fields."""
        try:
            return cls(**source)
        except TypeError:
            unknown = [name for name in source if name not in INPUT_KEYS]
            raise InputError(
                f"{listed(unknown)} is unknown in an input{meant(str(unknown[0]), INPUT_KEYS)}; allowed are"
                f" {listed(INPUT_KEYS, 40)}."
            ) from None

    def by_name(self) -> dict[str, Any]:
        """Returns the fields that it has, by name."""
        return {name: value for name in INPUT_KEYS if (value := getattr(self, name)) is not None}

    def among(self, names: Iterable[str]) -> list[str]:
        """Returns those of the names that it has a field of."""
        return [name for name in names if getattr(self, name) is not None]

    def check_one(self, names: Iterable[str]) -> None:
        """Raises InputError where it has several of these fields."""
        if len(both := self.among(names)) > 1:
            raise together(both)

    @property
    def table(self) -> PromptTable | None:
        """Returns the rows of its prompt table."""
        return None if self.prompt_table is None else read_table(self.prompt_table)

    def truncation(self, most: int) -> int | None:
        """Returns the tokens that its text is cut to: with truncate=True `most`, with a number so many; None: it is
        not."""
        truncate = self.truncate
        if truncate is None or truncate is True:
            return most if truncate else None
        if not isinstance(truncate, int) or truncate < 0:
            said = f"truncate is {truncate!r}; it must be true, false or a number of tokens."
            raise InputError(said, settings=("truncate",))
        return min(most, truncate) if truncate else None


INPUT_KEYS = tuple(field.name for field in dataclasses.fields(InputFields))


def together(names: Sequence[str]) -> InputError:
    """Returns the error of an input that has several fields of which it may have one."""
    return InputError(f"{listed(names)} were given together; an input has one of them.", settings=tuple(names))


def as_images(images: Any) -> list[Any] | tuple[Any, ...]:
    """Returns the images of an input, of which one may stand alone: an array, too, of which Python cannot say whether
    it is empty."""
    if images is None:
        return ()
    return images if isinstance(images, list | tuple) else [images]


def check_text(name: str, value: Any) -> None:
    """Raises InputError for what is there and no text."""
    if not isinstance(value, str | None):
        raise InputError(f"the {name} must be a text; got {type(value).__name__}.")


def as_tensor(name: str, values: Any, allowed: str) -> torch.Tensor:
    """Returns a tensor, an array or lists of numbers as a tensor. Raises InputError for anything else."""
    import torch

    try:
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{name} is no array but {type(values).__name__}; give {allowed}.") from None


def read_table(rows: Any) -> PromptTable:
    """Reads the rows of a prompt table [n, hidden]: a tensor, an array, a tuned prompt, or what was read of one. Raises
    InputError for another shape, and for NaN or infinity."""
    if isinstance(rows, PromptTable):
        return rows
    if isinstance(rows, TunedPrompt):
        return _tuned_table(rows)
    return PromptTable.from_rows(read_rows(rows, "the prompt table"))


def read_rows(values: Any, name: str = "encoder_output") -> torch.Tensor:
    """Reads rows [n, hidden] of numbers: a tensor, an array or lists. Raises InputError for another shape, and for NaN
    or infinity."""
    rows = as_tensor(name, values, "floats [rows, hidden]")
    if rows.ndim != 2 or not rows.is_floating_point():
        raise InputError(f"{name} is {rows.dtype} of shape {list(rows.shape)}; give floats [rows, hidden].")
    if not rows.float().isfinite().all():
        raise InputError(f"{name} holds NaN or infinity among its rows; give finite floats.")
    return rows


@functools.lru_cache(maxsize=256)  # of tasks that are asked for again and again: a key is a pass over the rows
def _tuned_table(tuned: TunedPrompt) -> PromptTable:
    import torch

    return PromptTable.from_rows(torch.from_numpy(tuned.rows))
