"""A model of any form -> a checkpoint, or an engine directory: `vlm convert` and `vlm build`."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from vlm.artifacts.files import check_replaceable
from vlm.artifacts.native.checkpoint import Check, Checkpoint, check_output, is_checkpoint, scratch_beside
from vlm.artifacts.native.engine_dir import is_engine
from vlm.artifacts.native.manifest import WHAT
from vlm.artifacts.progress import Progress
from vlm.build.ahead import build_check, check_build
from vlm.build.builder import build_engine, check_backend
from vlm.build.locate import Source, locate
from vlm.config import BuildConfig
from vlm.convert.adapters.completed_base import completed_base, completes
from vlm.convert.adapters.merging import merge_adapter
from vlm.convert.adapters.peft import read_settings
from vlm.convert.folder import convert_file, convert_folder
from vlm.convert.split import split_checkpoint
from vlm.errors import CheckpointError, EngineError, InputError, listed, shown
from vlm.packaged import adapter_folder, named_path, new_path
from vlm.registry.catalogs import converter_of


def convert_model(
    model: str | Path,
    out: str | Path,
    *,
    tokenizer: str | None = None,
    tp_size: int = 1,
    pp_size: int = 1,
    encoder_tp_size: int | None = None,
    merge_lora: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Converts a packaged name, a Hub id, a folder or an archive into a checkpoint at `out`, and returns its path.

    It is written whole or not at all. Prompts and adapters that were tuned beside a model become folders of their own.

    `tokenizer`: what splits a FairSeq model's texts before BPE, "moses" or "none"; None: as the model was trained.
    `tp_size`, `pp_size`, `encoder_tp_size`: as a build has them; with several ranks the checkpoint is split among them.
    `merge_lora`: the folder of an adapter, which becomes a part of the weights. Both may be done to a checkpoint.
    Raises a VlmError with one sentence.
    """
    build = BuildConfig(tp_size=tp_size, pp_size=pp_size, encoder_tp_size=encoder_tp_size)
    out = new_path(out, "out")
    adapter = None if merge_lora is None else adapter_folder(str(named_path(merge_lora, "merge_lora")))
    source = locate(model, progress=progress)
    is_changed = build.num_ranks > 1 or merge_lora is not None
    if source.kind == "engine" or (source.kind == "checkpoint" and not is_changed):
        raise InputError(f"{model} is converted already ({source.kind}); give a model's folder or Hub id.")
    if not is_changed:
        _check_output(source, out)
        return convert_file(source.path, out, progress=progress, tokenizer=tokenizer)
    check_output(out)
    check_build(source.path, source.kind, build)
    if adapter is not None:
        read_settings(adapter)  # a mistyped name
    with scratch_beside(out) as scratch:
        changes = _changes(build, merge_lora)
        convert = partial(
            _checkpoint_of_model, scratch=scratch, changes=changes, progress=progress, tokenizer=tokenizer,
            check=build_check(build),
        )  # fmt: skip
        whole = convert(source) if adapter is None else _base_of(adapter, source, scratch, convert)
        if adapter is not None:
            merged = out if build.num_ranks == 1 else scratch / "merged"
            whole = merge_adapter(whole, adapter, merged, progress=progress)
        return whole.path if build.num_ranks == 1 else split_checkpoint(whole, out, build, progress=progress).path


def _changes(build: BuildConfig, merge_lora: str | Path | None) -> list[str]:
    """Returns the settings that ask for more than a conversion."""
    said = {
        "tp_size": build.tp_size != 1,
        "pp_size": build.pp_size != 1,
        "encoder_tp_size": build.encoder_tp_size is not None,
        "merge_lora": merge_lora is not None,
    }
    return [setting for setting, is_said in said.items() if is_said]


def _check_output(source: Source, out: Path) -> None:
    """Raises CheckpointError for a place that no checkpoint can be written to, where the source becomes one."""
    converter = converter_of(source.path)
    if os.path.lexists(out) and (converter is None or converter.beside_model(source.path) is None):
        check_output(out)


def _checkpoint_of_model(
    source: Source,
    *,
    scratch: Path,
    changes: list[str],
    progress: Progress | None,
    tokenizer: str | None,
    check: Check,
) -> Checkpoint:
    """Returns the checkpoint of a source. Raises InputError for what was tuned beside a model, which the `changes`,
    settings, are not for."""
    if source.kind == "checkpoint":
        return checkpoint_of(source, scratch, progress, tokenizer)
    path = convert_file(source.path, scratch / "checkpoint", progress=progress, tokenizer=tokenizer, check=check)
    if not is_checkpoint(path):
        raise InputError(
            f"{source.name} is what was tuned beside a model, and {listed(changes)} is for models; leave it out, and"
            " vlm convert makes a folder of it.",
            settings=tuple(changes),
        )
    return Checkpoint.open(path)


def _base_of(
    adapter: Path, source: Source, scratch: Path, checkpoint_of_model: Callable[[Source], Checkpoint]
) -> Checkpoint:
    """Returns the checkpoint that an adapter is merged into: a source's, or that of a model around it which the
    adapter's folder describes."""
    if source.kind != "hf" or not completes(source.path, adapter):
        return checkpoint_of_model(source)
    whole = completed_base(source.path, adapter, scratch / "base" / source.path.resolve().name)
    try:
        return checkpoint_of_model(replace(source, path=whole))
    except CheckpointError as error:  # what is missing can be put beside the adapter
        raise CheckpointError(str(error).replace(str(whole), str(adapter))) from None


def build_model(
    model: str | Path,
    out: str | Path,
    config: BuildConfig | None = None,
    *,
    workers: int = 1,
    progress: Progress | None = None,
) -> Path:
    """Builds what `convert_model` takes, or a checkpoint, into an engine directory at `out`, and returns its path.

    It is written whole or not at all; an older engine there is replaced. `workers`: files of ranks that are written at
    the same time. Raises a VlmError with one sentence.
    """
    config, out = config or BuildConfig(), new_path(out, "out")
    if not isinstance(config, BuildConfig):
        raise InputError(f"config is {shown(config)}; give a vlm.BuildConfig.")
    check_backend(config)
    source = locate(model, progress=progress)
    if source.kind == "engine":
        raise InputError(f"{model} is an engine already; build from its checkpoint or model folder.")
    check_replaceable(out.resolve(), is_engine, WHAT, EngineError)
    check_build(source.path, source.kind, config)
    with engine_scratch(out) as scratch:
        checkpoint = checkpoint_of(source, scratch, progress, check=build_check(config))
        return build_engine(checkpoint, out, config, workers=workers, progress=progress).path


def engine_scratch(out: Path) -> AbstractContextManager[Path]:
    """Returns a folder for the checkpoint of an engine that is built at `out`. EngineError as of scratch_beside."""
    return scratch_beside(out, WHAT, EngineError)


def checkpoint_of(
    source: Source,
    scratch: Path,
    progress: Progress | None = None,
    tokenizer: str | None = None,
    *,
    check: Check | None = None,
) -> Checkpoint:
    """Returns the checkpoint that a source is, or one below `scratch` that a model's folder is converted to; `check` as
    of convert_folder."""
    if source.kind == "checkpoint" and tokenizer is None:
        return Checkpoint.open(source.path)
    return convert_folder(source.path, scratch / "checkpoint", progress=progress, tokenizer=tokenizer, check=check)
