"""The backend `eager`: the modules on the CPU, their weights in one file of numpy's a network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from vlm.backends.base import Backend, BuildJob, BuiltFiles, Layout
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import EngineError, InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vlm.artifacts.native.engine_dir import EngineDir

FORMAT = "1"


class EagerBackend(Backend):
    name = "eager"
    description = "CPU, weights as numpy keeps them"
    layout = Layout.PAGED
    devices = ("cpu",)
    dtypes = ("float32", "float16")

    def default_dtype(self, device: str) -> str:
        return "float32"

    def check_build(self, build: BuildConfig) -> None:
        import sys

        if sys.byteorder != "little":
            raise EngineError("the backend eager writes little-endian files, build on a machine that has such numbers.")

    def cache_key(self) -> dict[str, str]:
        return {"eager": FORMAT}

    def write(self, job: BuildJob) -> BuiltFiles:
        import numpy as np

        from vlm.artifacts.native.manifest import file_entries

        paths = []
        for done, (role, weights) in enumerate(job.roles.items()):
            if job.progress:
                job.progress("Writing arrays", done, len(job.roles))
            paths.append(path := job.folder / role / "weights.npz")
            path.parent.mkdir()
            np.savez(path, **{name: weights.source.read(name).numpy() for name in weights.source.layout})
        return BuiltFiles(file_entries(job.folder, paths), {"devices": ["cpu"], "eager": FORMAT})

    def resolve_device(self, name: str) -> torch.device:
        import torch

        if name not in ("auto", "cpu"):
            raise InputError(f"device is {name}; an eager engine runs on cpu, build for torch instead.")
        return torch.device("cpu")

    def fit_runtime(self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> RuntimeConfig:
        if (built := engine.manifest.built_for.get("eager")) != FORMAT:
            raise EngineError(f"{engine.path} has format {built} of eager, this one reads {FORMAT}; build it again.")
        return replace(runtime, cuda_graphs=False)

    def load(self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> dict[str, nn.Module]:
        return {role: self._module(engine, role, device) for role in engine.loaded_roles}

    def _module(self, engine: EngineDir, role: str, device: torch.device) -> nn.Module:
        import numpy as np
        import torch

        from vlm.registry.networks import load_network

        with np.load(engine.path / role / "weights.npz") as arrays:
            weights = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        return load_network(engine, role, weights, device)
