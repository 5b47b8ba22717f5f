"""Options that several verbs share; their defaults come from the dataclasses."""

from __future__ import annotations

from typing import Annotated

import typer

from vlm.config import DTYPES
from vlm.errors import InputError

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
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def check_reference_dtype(dtype: str | None, wanted_by: str | None = None) -> None:
    """Raises InputError for an unknown type, and for any where `wanted_by`, the option that it goes with, is left
    out."""
    if dtype is not None and dtype not in DTYPES:
        raise InputError(f"--reference-dtype is {dtype!r}; allowed are {_dtypes}.")
    if dtype is not None and wanted_by is not None:
        raise InputError(f"--reference-dtype is about Hugging Face, which {wanted_by} runs; add {wanted_by}.")
