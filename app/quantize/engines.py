"""Engines of a job, dense and quantized, in a folder that vanishes with it: one is loaded at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.progress import Progress
from vlm.backends.devices import resolve_device
from vlm.backends.installed import backend
from vlm.build.builder import build_engine
from vlm.config import BuildConfig
from vlm.quantize.calibration import recording
from vlm_app.core.load_options import LoadOptions
from vlm_app.core.processes.running import open_pipeline

CACHE = {"kv_cache_free_gpu_memory_fraction": 0.3}  # the rest of a GPU is for statistics of layers


@dataclass(frozen=True)
class Engines:
    """Builds and loads engines as a command's options say, on torch, which all quantizations run on."""

    options: LoadOptions
    folder: Path
    progress: Progress

    def build(self, checkpoint: Checkpoint, name: str) -> EngineDir:
        device = resolve_device(self.options.device)
        dtype = backend(BuildConfig.backend).default_dtype(device.type)
        build = BuildConfig(**{"dtype": dtype, **self.options.build})
        return build_engine(checkpoint, self.folder / name, build, progress=self.progress)

    @contextmanager
    def loaded(self, engine: EngineDir) -> Iterator[Pipeline]:
        """Gives a running engine, whose memory is free afterwards."""
        with open_pipeline(engine, self.options.runtime_config(**CACHE)) as pipeline:
            yield pipeline

    @contextmanager
    def recording(self, engine: EngineDir) -> Iterator[Pipeline]:
        """Gives the same for an engine whose layers are recorded."""
        with open_pipeline(engine, recording(self.options.runtime_config(**CACHE))) as pipeline:
            yield pipeline
