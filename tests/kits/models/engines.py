"""A Hugging Face model in memory -> folder -> checkpoint -> engine -> Pipeline: the path users take."""

from __future__ import annotations

from pathlib import Path

from tests.kits.models import tiny
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.backends.base import GROUPED
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder


def engine_dir(model, folder: Path, **build) -> EngineDir:
    """Saves, converts and builds below `folder`."""
    model.save_pretrained(folder / "hf")
    checkpoint = convert_folder(folder / "hf", folder / "checkpoint")
    return build_engine(checkpoint, folder / "engine", BuildConfig(**build))


def pipeline(model, folder: Path, runtime: RuntimeConfig | None = None, **build) -> Pipeline:
    return Pipeline(engine_dir(model, folder, **build), runtime or RuntimeConfig(device="cpu"))


def rebuilt(engine: EngineDir, **build) -> EngineDir:
    """The checkpoint that `engine_dir` left beside the engine, built for other limits."""
    folder = engine.path.parent
    return build_engine(Checkpoint.open(folder / "checkpoint"), folder / "rebuilt", BuildConfig(**build))


def grouped_checkpoint(folder: Path) -> Checkpoint:
    """Returns that of a LLaMA of float32 whose query heads share heads of keys and values."""
    engine_dir(tiny.llama(seed=3, num_key_value_heads=2), folder)
    return Checkpoint.open(folder / "checkpoint")


def method_options(method: str, group_size: int) -> dict:
    """What a build says of a method: the size of its groups where it has some."""
    return {"quantization": method} | ({"group_size": group_size} if method in GROUPED else {})
