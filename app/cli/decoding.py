"""What `vlm run` and `vlm generate` share: sampling options, the model they take, what stdin is read for."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from vlm_app.cli.progress import Progress

from vlm.config import RuntimeConfig
from vlm.errors import InputError

if TYPE_CHECKING:
    from vlm.pipeline import Pipeline

DEFAULT_ASKED_MODEL = "mini-llava"  # where it is packaged

Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Draw from the k likeliest; 0: all.")]
TopP = Annotated[float, typer.Option(help="Draw from the likeliest that make up p.")]
MinP = Annotated[float, typer.Option(help="Draw from those of at least p times the likeliest's chance.")]
RepetitionPenalty = Annotated[
    float | None, typer.Option(help="Above 1: tokens that stand there already count less. [default: the model's]")
]
PresencePenalty = Annotated[float, typer.Option(help="Taken off what the output holds.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Taken off for each time that the output holds it.")]
NoRepeatNgramSize = Annotated[int | None, typer.Option(help="No n tokens in a row come twice. [default: the model's]")]
MinNewTokens = Annotated[int, typer.Option(help="No end before so many.")]
Seed = Annotated[int | None, typer.Option(help="Makes sampling repeatable.")]
Chat = Annotated[
    bool,
    typer.Option("--chat", help="Converse: a line of stdin a turn; /image FILE, /reset and /exit are commands."),
]


def load(
    model: str,
    device: str,
    dtype: str | None,
    max_batch_size: int | None,
    leave_room: bool = False,
    backend: str | None = None,
    threads: int | None = None,
) -> Pipeline:
    """The model, with progress on stderr; `leave_room`: its cache leaves most of a GPU to another model."""
    import vlm

    room = {"kv_cache_free_gpu_memory_fraction": 0.2} if leave_room else {}
    options = {"runtime": RuntimeConfig(device, threads=threads, **room), "backend": backend}
    with Progress() as progress:
        loaded = vlm.load(
            model, device=device, dtype=dtype, max_batch_size=max_batch_size, progress=progress, **options
        )
    if backend == "auto":
        print(f"backend {_explained(loaded, dtype)}", file=sys.stderr)
    return loaded


def _explained(pipeline: Pipeline, dtype: str | None) -> str:
    """Which backend runs, and why."""
    from vlm.backends import pick

    name, picked = pipeline.engine.build.backend, pick(pipeline.device.type, dtype)
    return f"{name}: {picked.reason if name == picked.name else 'the engine was built for it'}"


def asked_model() -> str | None:
    """The packaged model that is asked in words, where there is one."""
    from vlm.resolve import packaged_models

    return DEFAULT_ASKED_MODEL if DEFAULT_ASKED_MODEL in packaged_models() else None


def check_asked(pipeline: Pipeline, what: str) -> None:
    """InputError for a model that is not asked in words."""
    family = pipeline.family
    if family.prompt is None:
        other = "--image" if "image" in family.inputs else "--text"
        raise InputError(f"{what} is for models that are asked in words; {family.name} takes {other}.")


def one_prompt(argument: str, verbatim: bool = False) -> str:
    """An argument, or for `-` all of stdin, without the ends of its last lines unless it is taken `verbatim`."""
    from vlm_app.text.sources import one_text

    text = one_text(argument)
    return text if verbatim or argument != "-" else text.rstrip("\r\n")
