"""Options that several verbs share; their defaults come from the dataclasses."""

from __future__ import annotations

from typing import Annotated

import typer

from vlm.config import BACKENDS, DTYPES, BuildConfig

DEFAULT_MODEL = "mini-nougat"

_dtypes = ", ".join(DTYPES)

MODEL_HELP = "A packaged name, a Hub id, a Hugging Face folder, a .nemo archive, a checkpoint or an engine."
Model = Annotated[str, typer.Option("--model", "-m", help=MODEL_HELP)]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
DType = Annotated[
    str | None,
    typer.Option(help=f"Computing type: {_dtypes}. [default: float32 on the CPU, bfloat16 on CUDA]"),
]
MaxBatchSize = Annotated[
    int | None,
    typer.Option(help=f"Sequences decoded at once. [default: as built, or {BuildConfig.max_batch_size}]"),
]
MaxNewTokens = Annotated[
    int | None, typer.Option(help="Tokens to generate at most. [default: as many as the engine holds]")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# of a build
BuildDType = Annotated[str, typer.Option(help=f"Weights and computing type: {_dtypes}.")]
BuildMaxBatchSize = Annotated[int, typer.Option(help="Sequences decoded at once, at most.")]
MaxSeqLen = Annotated[
    int | None, typer.Option(help="Decoder tokens a sequence, prompt included. [default: what the model was made for]")
]
MaxEncoderInputLen = Annotated[
    int | None, typer.Option(help="Encoder rows (tokens of a text) a request. [default: what the model takes]")
]
Backend = Annotated[str, typer.Option(help=f"What runs it: {', '.join(BACKENDS)}.")]
