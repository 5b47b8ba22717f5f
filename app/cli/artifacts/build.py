"""`vlm build`: a checkpoint or a Hugging Face model -> an engine directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from vlm.config import BuildConfig
from vlm.errors import InputError
from vlm.options import check_limits, flag_of, option
from vlm.parallel.environment import check_alone
from vlm.ranges import Range, at_least
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.errors import command
from vlm_app.cli.options.groups import BUILD, Group, takes
from vlm_app.core.architecture import hf_config, read_arch


@dataclass(frozen=True)
class FileOptions:
    """How an engine's files are written."""

    workers: int = option(1, "Files of ranks (--tp-size, --pp-size) that are written at once.", allowed=at_least(1))

    def __post_init__(self) -> None:
        check_limits(self, flags=True)


@dataclass(frozen=True)
class RandomOptions:
    """How random weights are drawn, as far as that is asked for."""

    seed: int | None = option(None, "Of the random weights.", default="0")
    initializer_range: float | None = option(
        None,
        "Standard deviation of the random weights. With about 0.005 what many layers compute in 16 bits stays near what"
        " they compute in float32.",
        default="0.02",
        allowed=Range(low=0.0, low_open=True, high=1.0, words="it must be above 0, and at most 1"),
    )

    def __post_init__(self) -> None:
        check_limits(self, flags=True)

    @property
    def values(self) -> dict[str, Any]:
        """Returns what is asked for, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@command
@takes(config=BUILD, files=Group.making(FileOptions), random=Group.making(RandomOptions))
def build(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the engine goes.")],
    source: Annotated[
        str | None, typer.Argument(help="A checkpoint, a Hugging Face folder, a Hub id or a packaged name.")
    ] = None,
    random_weights: Annotated[
        bool, typer.Option("--random-weights", help="Instead of a source: random weights in the shape of --arch.")
    ] = False,
    arch: Annotated[
        str | None, typer.Option(help="A published shape (`vlm models` lists them) or a Hugging Face config.json.")
    ] = None,
    config: BuildConfig,
    files: FileOptions,
    random: RandomOptions,
) -> None:
    """Build an engine directory: self-contained, checked on loading. Its path goes to stdout.

    \b
    Examples:
      vlm build nougat-base.ckpt -o nougat-base.engine --dtype bfloat16 --max-batch-size 64
      vlm build facebook/nougat-small -o nougat-small.engine --max-seq-len 2048
      vlm build mini-t5 -o mini-t5.engine --backend onnxruntime
      vlm build mini-t5 -o small.engine --backend onnxruntime --quantization int8
      vlm build --random-weights --arch nougat-base -o random.engine --dtype bfloat16
      vlm build flan-t5-xxl-tp2.ckpt -o flan-t5-xxl.engine --dtype bfloat16 --tp-size 2 --workers 2
      vlm build t5-small -o t5.engine --backend tensorrt --target sm80,sm86,sm89 --dtype float16
    """
    check_alone("vlm build")
    _check(source, random_weights, arch, random)
    with Progress() as progress:
        write = {"workers": files.workers, "progress": progress}
        path = _build(source, out, config, write) if arch is None else _build_random(arch, out, config, random, write)
    print(path)


def _check(source: str | None, random_weights: bool, arch: str | None, random: RandomOptions) -> None:
    if source is not None and (random_weights or arch is not None):
        raise InputError(f"{source} has weights of its own; leave --arch and --random-weights out, or the model.")
    if random_weights != (arch is not None):
        raise InputError("--random-weights and --arch go together: vlm build --random-weights --arch nougat-base.")
    if random.values and not random_weights:
        flag = flag_of(RandomOptions, next(iter(random.values)))
        raise InputError(f"{flag} is of random weights, and a source has weights of its own; leave it out.")


def _build(source: str | None, out: Path, config: BuildConfig, write: dict[str, Any]) -> Path:
    if source is None:
        raise InputError("there is nothing to build from; give a model, or --random-weights --arch NAME.")
    from vlm.build.from_model import build_model

    return build_model(source, out, config, **write)


def _build_random(arch: str, out: Path, config: BuildConfig, random: RandomOptions, write: dict[str, Any]) -> Path:
    from vlm.build.ahead import roles_of_config
    from vlm.build.builder import build_engine, check_backend
    from vlm.build.from_model import engine_scratch
    from vlm.build.random_checkpoint import random_checkpoint

    check_backend(config)
    if config.quantization is not None:
        roles_of_config(hf_config(arch), config.quantization, config.quantization_options)  # before weights are drawn
    with engine_scratch(out) as scratch:
        folder = scratch / "checkpoint"
        checkpoint = random_checkpoint(read_arch(arch), folder, dtype=config.dtype, **random.values)
        return build_engine(checkpoint, out, config, **write).path
