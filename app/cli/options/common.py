"""Options that several verbs share; their defaults come from the dataclasses."""

from __future__ import annotations

from typing import Annotated

import typer

from vlm.config.build import DTYPES
from vlm.errors import InputError, listed

DEFAULT_MODEL = "mini-nougat"

_dtypes = ", ".join(DTYPES)

MODEL_HELP = "A packaged name, a Hub id, a Hugging Face folder, a .nemo archive, a checkpoint or an engine."
Model = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)]
ReferenceDType = Annotated[
    str | None,
    typer.Option(
        "--reference-dtype", help=f"What Hugging Face computes in: {_dtypes}. [default: the engine's computing type]"
    ),
]
Against = Annotated[
    str | None,
    typer.Option(help="The Hugging Face folder (or Hub id) that an engine was made of. [default: the model itself]"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_reference(dtype: str | None, against: str | None = None, wanted_by: str | None = None) -> None:
    """Raises InputError for an unknown type, and for any type or folder where `wanted_by`, the option that they go
    with, is left out."""
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"--reference-dtype is {dtype!r}; allowed are {_dtypes}.")
    given = {"--reference-dtype": dtype, "--against": against}
    if wanted_by is not None and (flags := [flag for flag, value in given.items() if value is not None]):
        raise InputError(f"{listed(flags)} is about Hugging Face, which {wanted_by} runs; add {wanted_by}.")
