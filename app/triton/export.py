"""An engine -> a Triton model repository: an ensemble of preprocessing, the engine by tensors, postprocessing."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from vlm.artifacts.files import atomic_dir
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.native.manifest import MANIFEST
from vlm.errors import InputError, LimitError
from vlm.processing.processor import Processor
from vlm_app.server.repository import pbtxt
from vlm_app.server.repository.triton_options import (
    AFTER,
    BEFORE,
    CONFIG,
    ENGINE,
    ENGINE_FOLDER,
    ENSEMBLE,
    FRONTEND_FOLDER,
    ExportConfig,
)
from vlm_app.triton.config import configs

VERSION = "1"
FILES = {BEFORE: FRONTEND_FOLDER, ENGINE: ENGINE_FOLDER, AFTER: FRONTEND_FOLDER}
MODELS = {BEFORE: "Preprocessing", ENGINE: "Engine", AFTER: "Postprocessing"}
PROGRAM = '''"""Written by `vlm export-triton`; Triton's Python needs the package vlm-runtime."""

from vlm_app.triton.{module} import {name} as TritonPythonModel

__all__ = ["TritonPythonModel"]
'''


def export(engine: EngineDir, out: Path, config: ExportConfig) -> None:
    """Writes the repository whole or not at all. Where `out` is one, its other models stay.

    Raises LimitError for a batch that the engine was not built for, InputError where `out` holds something else.
    """
    if not engine.generates:
        raise InputError(
            f"{engine.family} is an encoder alone, and Triton's models here are those that write; put its folder at"
            " NAME/1/ of a model repository and serve that: vlm serve --model-repository FOLDER."
        )
    if config.max_batch_size > engine.limits.max_batch_size:
        raise LimitError(
            f"max_batch_size {config.max_batch_size} is more than the engine's {engine.limits.max_batch_size}; rebuild"
            f" with --max-batch-size {config.max_batch_size}."
        )
    models = configs(Processor.from_engine(engine), config)
    names = {each["name"] for each in models.values()}

    def takes_it(folder: Path) -> bool:
        there = {child.name for child in folder.iterdir()}
        return all((folder / name / CONFIG).is_file() for name in there) and there & names in (set(), names)

    with atomic_dir(out, takes_it, f"Triton model repository that can take {config.name}", InputError) as draft:
        for other in out.iterdir() if out.is_dir() else ():
            if other.name not in names:
                shutil.copytree(other, draft / other.name, copy_function=_linked)
        for part, each in models.items():
            _write_model(draft / each["name"], part, each, engine)


def _linked(source: str, target: str) -> None:
    """Engines are large: a second name in place of a copy, where the file system has them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _write_model(folder: Path, part: str, config: dict[str, Any], engine: EngineDir) -> None:
    version = folder / VERSION
    version.mkdir(parents=True)
    (folder / CONFIG).write_text(pbtxt.to_text(config), encoding="utf-8")
    if part == ENSEMBLE:
        # object stores know no empty folders
        (version / "README").write_text("Triton wants this folder; the ensemble's parts are models of their own.\n")
        return
    (version / "model.py").write_text(PROGRAM.format(module=part, name=MODELS[part]), encoding="utf-8")
    names = [name for name in engine.manifest.files if part == ENGINE or name.startswith("processor/")]
    for name in (MANIFEST, *names):
        target = version / FILES[part] / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(engine.path / name, target)
