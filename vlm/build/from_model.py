"""A model of any form -> a checkpoint, or an engine directory: `vlm convert` and `vlm build`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from vlm.artifacts.checkpoint import Checkpoint, Progress
from vlm.build.builder import build_engine, check_backend
from vlm.build.store import Source, locate
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.errors import InputError


def convert_model(
    model: str | Path, out: str | Path, *, tokenizer: str | None = None, progress: Progress | None = None
) -> Path:
    """Converts a packaged name, a Hub id, a folder or an archive into a checkpoint at `out`, and returns its path.

    It is written whole or not at all. `tokenizer`: what splits a FairSeq model's texts before BPE, "moses" or "none";
    None: as the model was trained. Raises a VlmError with one sentence.
    """
    source = locate(model, progress=progress)
    if source.kind in ("engine", "checkpoint"):
        raise InputError(f"{model} is converted already ({source.kind}); give a model's folder or Hub id.")
    return convert_folder(source.path, Path(out), progress=progress, tokenizer=tokenizer).path


def build_model(
    model: str | Path, out: str | Path, config: BuildConfig | None = None, *, progress: Progress | None = None
) -> Path:
    """Builds what `convert_model` takes, or a checkpoint, into an engine directory at `out`, and returns its path.

    It is written whole or not at all; an older engine there is replaced. Raises a VlmError with one sentence.
    """
    config = config or BuildConfig()
    check_backend(config)
    source = locate(model, progress=progress)
    if source.kind == "engine":
        raise InputError(f"{model} is an engine already; build from its checkpoint or model folder.")
    with tempfile.TemporaryDirectory(prefix="vlm-build-") as scratch:
        checkpoint = checkpoint_of(source, Path(scratch), progress)
        return build_engine(checkpoint, Path(out), config, progress=progress).path


def checkpoint_of(source: Source, scratch: Path, progress: Progress | None = None) -> Checkpoint:
    """Returns the checkpoint that a source is, or one below `scratch` that a model's folder is converted to."""
    if source.kind == "checkpoint":
        return Checkpoint.open(source.path)
    return convert_folder(source.path, scratch / "checkpoint", progress=progress)
