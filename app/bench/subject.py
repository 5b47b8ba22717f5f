"""The model under measurement, as an engine for us and as a folder for Hugging Face: the same weights for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from app.architecture import hf_config, read_arch
from app.bench.config import BenchConfig
from app.bench.huggingface import quiet
from vlm.checkpoint import Checkpoint
from vlm.compile.builder import build_engine, convert_folder, random_checkpoint
from vlm.config import BuildConfig
from vlm.resolve import Source, locate

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Subject:
    """`folder` None: there is nothing that Hugging Face could load."""

    engine: Path
    folder: Path | None


def prepare(config: BenchConfig, dtype: str, scratch: Path, progress: Progress | None = None) -> Subject:
    """Builds an engine for the run below `scratch`."""
    build = BuildConfig(dtype=dtype, max_batch_size=config.batch_size)
    if config.model is not None:
        source = locate(config.model, progress=progress)
        if source.kind == "engine":
            return Subject(source.path, None)
    else:
        source = _random_source(config, dtype, scratch)
    checkpoint = _checkpoint(source, scratch / "checkpoint", progress)
    engine = build_engine(checkpoint, scratch / "engine", build, progress=progress)
    return Subject(engine.path, source.path if source.kind == "hf" else None)


def _random_source(config: BenchConfig, dtype: str, scratch: Path) -> Source:
    """With a baseline the weights are Hugging Face's own initialization, saved for both; else ours are quicker."""
    if not config.hf:
        checkpoint = random_checkpoint(read_arch(config.arch), scratch / "random", seed=config.seed, dtype=dtype)
        return Source(config.subject, checkpoint.path, "checkpoint")
    from transformers import VisionEncoderDecoderConfig, VisionEncoderDecoderModel

    quiet()
    torch.manual_seed(config.seed)
    model = VisionEncoderDecoderModel(VisionEncoderDecoderConfig.from_dict(hf_config(config.arch)))
    model.to(getattr(torch, dtype)).save_pretrained(scratch / "hf")
    return Source(config.subject, scratch / "hf", "hf")


def _checkpoint(source: Source, out: Path, progress: Progress | None) -> Checkpoint:
    if source.kind == "checkpoint":
        return Checkpoint.open(source.path)
    return convert_folder(source.path, out, progress=progress)
