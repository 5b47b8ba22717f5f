"""What prompts and inputs may be: one text or many, or their token ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError, ValidationInfo, ValidatorFunctionWrapHandler, WrapValidator

from vlm.requests.sampling_options import MAX_OUTPUTS
from vlm_app.server.openai.fields import refusal
from vlm_app.server.openai.sampling_fields import TokenId

MAX_IDS = 2**20  # of an input: what the engine takes, it knows
MAX_EMBEDDINGS = 2048  # a request, as OpenAI has it


def _in_one_sentence(most: int) -> WrapValidator:
    """Returns what refuses a field that is neither a text nor token ids, nor up to `most` of either, in one sentence:
    the errors of a union tell of its first member alone."""

    def checked(value: Any, read: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        try:
            return read(value)
        except ValidationError:
            name = str(info.field_name)
            raise refusal(
                name,
                f"{name} {_found(value, most)}; give a text, 1 to {MAX_IDS:,} token ids, none of them negative, or a"
                f" list of 1 to {most:,} such texts or lists of ids.",
            ) from None

    return WrapValidator(checked)


def _found(value: Any, most: int) -> str:
    """Says in which way a value is no input."""
    if not isinstance(value, list):
        return "is neither a text nor a list"
    if len(value) > (MAX_IDS if value and isinstance(value[0], int) else most):
        return f"has {len(value):,} entries"
    return "holds something else than texts or token ids" if value else "is empty"


# the first wrong element says enough: a million of them would make as many errors
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_IDS, fail_fast=True)]


def _one_or_several(most: int) -> Any:
    """Returns the type of a field that holds an input, or up to `most` of them."""
    length = Field(min_length=1, max_length=most, fail_fast=True)
    given = str | Annotated[list[str], length] | TokenIds | Annotated[list[TokenIds], length]
    return Annotated[given, _in_one_sentence(most)]


if TYPE_CHECKING:
    Prompts = Embedded = str | list
else:
    Prompts, Embedded = _one_or_several(MAX_OUTPUTS), _one_or_several(MAX_EMBEDDINGS)


def several(value: str | list) -> list[str | list[int]]:
    """Returns one or several, each as text or as ids."""
    return [value] if isinstance(value, str) or isinstance(value[0], int) else list(value)
