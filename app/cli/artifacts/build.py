"""`vlm build`: a checkpoint or a Hugging Face model -> an engine directory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from vlm.config import BuildConfig
from vlm.errors import InputError
from vlm_app.cli.display.progress import Progress
from vlm_app.cli.errors import command
from vlm_app.cli.options.groups import BUILD, takes
from vlm_app.core.architecture import read_arch


@command
@takes(config=BUILD)
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
    seed: Annotated[int, typer.Option(help="Of the random weights.")] = 0,
    config: BuildConfig,
) -> None:
    """Build an engine directory: self-contained, checked on loading. Its path goes to stdout.

    \b
    Examples:
      vlm build nougat-base.ckpt -o nougat-base.engine --dtype bfloat16 --max-batch-size 64
      vlm build facebook/nougat-small -o nougat-small.engine --max-seq-len 2048
      vlm build mini-t5 -o mini-t5.engine --backend onnxruntime
      vlm build mini-t5 -o small.engine --backend onnxruntime --quantization int8
      vlm build --random-weights --arch nougat-base -o random.engine --dtype bfloat16
      vlm build t5-small -o t5.engine --backend tensorrt --target sm80,sm86,sm89 --dtype float16
    """
    _check(source, random_weights, arch)
    with Progress() as progress:
        path = _build(source, arch, out, config, seed=seed, progress=progress)
    print(path)


def _check(source: str | None, random_weights: bool, arch: str | None) -> None:
    if random_weights and source is not None:
        raise InputError("give either a source or --random-weights, not both.")
    if random_weights != (arch is not None):
        raise InputError("--random-weights and --arch go together: vlm build --random-weights --arch nougat-base.")


def _build(
    source: str | None, arch: str | None, out: Path, config: BuildConfig, *, seed: int, progress: Progress
) -> Path:
    if arch is not None:
        return _build_random(arch, out, config, seed=seed, progress=progress)
    if source is None:
        raise InputError("there is nothing to build from; give a model, or --random-weights --arch NAME.")
    from vlm.build.from_model import build_model

    return build_model(source, out, config, progress=progress)


def _build_random(arch: str, out: Path, config: BuildConfig, *, seed: int, progress: Progress) -> Path:
    from vlm.build.builder import build_engine, check_backend
    from vlm.build.random_checkpoint import random_checkpoint

    check_backend(config)
    with tempfile.TemporaryDirectory(prefix="vlm-build-") as scratch:
        checkpoint = random_checkpoint(read_arch(arch), Path(scratch) / "checkpoint", seed=seed, dtype=config.dtype)
        return build_engine(checkpoint, out, config, progress=progress).path
