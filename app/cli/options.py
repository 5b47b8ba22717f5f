"""Options that several verbs share; their defaults come from the dataclasses."""

from __future__ import annotations

from typing import Annotated

import typer

from vlm.config import BACKENDS, DTYPES, QUANTIZATIONS, BuildConfig

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
RunBackend = Annotated[
    str | None,
    typer.Option(
        "--backend",
        help=f"What runs it: {', '.join(BACKENDS)}, or auto: what suits this machine. [default: as built, or torch]",
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads at most. [default: $OMP_NUM_THREADS, or the usable cores]")
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
Target = Annotated[
    str | None,
    typer.Option(
        help="GPUs of a TensorRT plan, like sm80,sm86. [default: the one here; without one, all from sm80 on]"
    ),
]
Backend = Annotated[str, typer.Option(help=f"What runs it: {', '.join(BACKENDS)}.")]
Quantization = Annotated[
    str | None,
    typer.Option(help=f"Of the weights: {', '.join(QUANTIZATIONS)} (backend onnxruntime). [default: as --dtype says]"),
]


def targets(text: str | None) -> tuple[str, ...]:
    """`sm80,sm86` -> its parts"""
    return tuple(part.strip().lower() for part in (text or "").split(",") if part.strip())
