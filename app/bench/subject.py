"""The model under measurement, as an engine for us and as a folder for Hugging Face: the same weights for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.architecture import hf_config, read_arch
from app.bench.config import SubjectConfig
from app.bench.huggingface import quiet
from vlm.checkpoint import Checkpoint
from vlm.compile.builder import build_engine, convert_folder, random_checkpoint, resolve_limits, role_configs
from vlm.compile.engine_dir import EngineDir
from vlm.compile.hf_folder import HFFolder
from vlm.config import BuildConfig
from vlm.errors import ConfigError, InputError, LimitError
from vlm.registry import FamilySpec, family, match_family
from vlm.resolve import Source, locate, resolve
from vlm.runtime.loader import resolve_device

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Subject:
    """`folder` None: there is nothing that Hugging Face could load."""

    engine: Path
    folder: Path | None


def prepare(
    config: SubjectConfig,
    dtype: str,
    scratch: Path,
    takes: str,
    progress: Progress | None = None,
    limits: dict[str, int] | None = None,
) -> Subject:
    """Builds an engine for the run below `scratch`; `limits` None: for the batch size, else as much as the model
    allows. InputError for a model that does not take "text" or "image", as is asked; LimitError for limits beyond it.
    """
    build = BuildConfig(dtype=dtype, **(limits or {"max_batch_size": getattr(config, "batch_size", 1)}))
    source = _source(config, build, scratch, takes, progress)
    if source.kind == "engine":
        return Subject(resolve(source.path, dtype=config.dtype, **(limits or {})), None)
    checkpoint = _checkpoint(source, scratch / "checkpoint", progress)
    _check_input(config.subject, family(checkpoint.family), takes)
    engine = build_engine(checkpoint, scratch / "engine", build, progress=progress)
    return Subject(engine.path, source.path if source.kind == "hf" else None)


def _source(config: SubjectConfig, build: BuildConfig, scratch: Path, takes: str, progress: Progress | None) -> Source:
    """What is not fit for the run is refused before minutes are spent."""
    if config.arch is not None:
        hf = hf_config(config.arch)
        _check(config.subject, hf, build, takes)
        return _random_source(config, build.dtype, scratch)
    source = locate(config.model, progress=progress)
    if source.kind == "engine":
        _check_input(config.subject, family(EngineDir.open(source.path, verify=False).family), takes)
    elif source.kind == "hf":
        _check(config.subject, HFFolder(source.path).config, build, takes)
    return source


def _check(subject: str, hf: dict[str, Any], build: BuildConfig, takes: str) -> None:
    spec = match_family(hf)
    _check_input(subject, spec, takes)
    try:
        resolve_limits(build, role_configs(spec, hf))
    except ConfigError as error:
        raise LimitError(f"the lengths asked for, and a start token, do not fit {subject}: {error}") from None


def _check_input(subject: str, family: FamilySpec, takes: str) -> None:
    if takes not in family.inputs:
        other = "vlm bench text" if takes == "image" else "vlm bench latency or throughput"
        raise InputError(f"{subject} takes {family.inputs[0]}; use {other}.")


def _random_source(config: SubjectConfig, dtype: str, scratch: Path) -> Source:
    """With a baseline the weights are Hugging Face's own initialization, saved for both; else ours are quicker."""
    if not config.hf:
        checkpoint = random_checkpoint(read_arch(config.arch), scratch / "random", seed=config.seed, dtype=dtype)
        return Source(config.subject, checkpoint.path, "checkpoint")
    quiet()
    torch.manual_seed(config.seed)
    model = _random_model(hf_config(config.arch), getattr(torch, dtype), resolve_device(config.device))
    model.save_pretrained(scratch / "hf")
    del model
    return Source(config.subject, scratch / "hf", "hf")


def _random_model(hf: dict[str, Any], dtype: torch.dtype, device: torch.device) -> torch.nn.Module:
    """Initialized on the device, where billions of draws take no time."""
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, VisionEncoderDecoderConfig, VisionEncoderDecoderModel

    kind = hf["model_type"]
    with device:
        if kind == "vision-encoder-decoder":
            return VisionEncoderDecoderModel(VisionEncoderDecoderConfig.from_dict(hf)).to(dtype)
        config = AutoConfig.for_model(**hf)
        model = AutoModelForSeq2SeqLM.from_config(config, dtype=dtype)
    if hf.get("tie_word_embeddings") is False:
        # transformers 5 ties what the published checkpoints keep apart
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) * 0.02)
    return model


def _checkpoint(source: Source, out: Path, progress: Progress | None) -> Checkpoint:
    if source.kind == "checkpoint":
        return Checkpoint.open(source.path)
    return convert_folder(source.path, out, progress=progress)
