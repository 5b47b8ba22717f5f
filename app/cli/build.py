"""`vlm build`: a checkpoint or a Hugging Face model -> an engine directory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlm.config import BuildConfig
from vlm.errors import InputError
from vlm_app.cli.errors import command
from vlm_app.cli.option_groups import BUILD, takes
from vlm_app.cli.progress import Progress
from vlm_app.core.architecture import read_arch

if TYPE_CHECKING:
    from vlm.artifacts.checkpoint import Checkpoint


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
    from vlm.build.builder import build_engine, check_backend

    check_backend(config)
    with Progress() as progress, tempfile.TemporaryDirectory(prefix="vlm-build-") as scratch:
        checkpoint = _checkpoint(source, arch, seed, config.dtype, Path(scratch), progress)
        engine = build_engine(checkpoint, out, config, progress=progress)
    print(engine.path)


def _check(source: str | None, random_weights: bool, arch: str | None) -> None:
    if random_weights and source is not None:
        raise InputError("give either a source or --random-weights, not both.")
    if random_weights != (arch is not None):
        raise InputError("--random-weights and --arch go together: vlm build --random-weights --arch nougat-base.")
    if not random_weights and source is None:
        raise InputError("there is nothing to build from; give a model, or --random-weights --arch NAME.")


def _checkpoint(
    source: str | None, arch: str | None, seed: int, dtype: str, scratch: Path, progress: Progress
) -> Checkpoint:
    from vlm.artifacts.checkpoint import Checkpoint
    from vlm.build.random_checkpoint import random_checkpoint
    from vlm.build.store import locate
    from vlm.convert.folder import convert_folder

    if source is None:
        assert arch is not None  # one of both is there
        return random_checkpoint(read_arch(arch), scratch / "checkpoint", seed=seed, dtype=dtype)
    found = locate(source, progress=progress)
    if found.kind == "engine":
        raise InputError(f"{source} is an engine already; build from its checkpoint or model folder.")
    if found.kind == "checkpoint":
        return Checkpoint.open(found.path)
    return convert_folder(found.path, scratch / "checkpoint", progress=progress)
