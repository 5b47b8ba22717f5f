"""Loads the models of a server, one by one."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import torch

from vlm.api.model.cache_bytes import CacheBytes
from vlm.api.pipeline import Pipeline
from vlm.api.warm_up import warm_up
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.progress import Progress
from vlm.backends.devices import resolve_device
from vlm.engine.fair_lock import device_lock
from vlm.errors import VlmWarning
from vlm_app.core.free_memory import free_bytes
from vlm_app.core.load_options import LoadOptions
from vlm_app.core.processes import garbage
from vlm_app.server.repository.repository import Entry

MARGIN = 2  # of a device's memory: what kernels, graphs and libraries take beside weights and cache


class Loader:
    """What is free on a GPU is shared out evenly among the caches of models that are yet to load."""

    def __init__(
        self,
        options: LoadOptions | None = None,
        *,
        warm: bool | None = None,
        progress: Progress | None = None,
    ):
        """`warm` None: on CUDA, where graphs are captured."""
        self._options = options or LoadOptions()
        self._num_expected, self._progress = 1, progress
        self._warm = warm
        self._unfinished = False  # has the last one not loaded, and left memory behind?

    def expect(self, count: int) -> None:
        """Notes how many models are to load now."""
        self._num_expected = count

    def model(self, model: str | Path, own: LoadOptions | None = None) -> Pipeline:
        """Loads a model; what it says of its `own` loading comes first. Raises a VlmError with one sentence."""
        if self._unfinished:
            self.freed()
        self._unfinished = True
        options = self._options if own is None else self._options.overridden_by(own)
        fraction = options.runtime_config().kv_cache_free_gpu_memory_fraction / self._num_expected
        options = options.overridden_by(LoadOptions(runtime={"kv_cache_free_gpu_memory_fraction": fraction}))
        self._num_expected = max(1, self._num_expected - 1)  # whether it loads or not
        with device_lock(resolve_device(options.device)):
            pipeline = options.load(model, self._progress)
            if self._warm or (self._warm is None and pipeline.device.type == "cuda"):
                warm_up(pipeline, self._progress)
        self._unfinished = False
        return pipeline

    def prepare(self, entry: Entry) -> bool:
        """Builds and checks an engine of a repository as far as that takes none of the device's memory. Returns whether
        it can be loaded beside what runs. Raises as `entry`."""
        options = self._options.overridden_by(self._without_device(entry.local_options(self._progress), entry.where))
        device, path = resolve_device(options.device), entry.fetched(self._progress)
        entry.config.check_ranks(path, entry.where)
        engine = EngineDir.open(options.resolve(path, device.type, self._progress))
        entry.config.check_family(engine.family, entry.where)
        weights = sum(file["size"] for file in engine.manifest.files.values())
        needed = MARGIN * (weights + CacheBytes.from_engine(engine).full_batch)
        return engine.build.num_ranks == 1 and needed <= free_bytes(device)

    def entry(self, entry: Entry) -> Pipeline:
        """Loads a model of a repository. Raises a VlmError, ConfigError where it is not what its configuration says."""
        for note in entry.config.notes:
            warnings.warn(note, VlmWarning, stacklevel=2)
        options = self._without_device(entry.local_options(self._progress), entry.where)
        path = entry.fetched(self._progress)
        entry.config.check_ranks(path, entry.where)
        pipeline = self.model(path, options)
        self._unfinished = True
        entry.config.check_family(pipeline.family.name, entry.where)
        self._unfinished = False
        return pipeline

    def _without_device(self, options: LoadOptions, where: Path) -> LoadOptions:
        """Returns the options: a device of the command line comes before that of the instance group."""
        device, own = self._options.runtime.get("device"), options.runtime.get("device")
        if device is None or own is None:
            return options
        if own != device:
            warnings.warn(f"{where}: its instance_group is for {own}; --device {device} is taken.", VlmWarning,
                          stacklevel=3)  # fmt: skip
        runtime = {name: value for name, value in options.runtime.items() if name != "device"}
        return replace(options, runtime=runtime)

    def freed(self) -> None:
        """Gives the memory of models that are no more back to the device."""
        with device_lock(resolve_device(self._options.device)):
            garbage.collect()
            torch.cuda.empty_cache()
