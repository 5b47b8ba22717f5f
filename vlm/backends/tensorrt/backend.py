"""The backend `tensorrt`: the exported graphs as plans of TensorRT or TensorRT-RTX, on CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlm.backends.base import Backend, BuildJob, BuiltFiles, Layout
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import InputError

if TYPE_CHECKING:
    import torch

    from vlm.artifacts.native.engine_dir import EngineDir
    from vlm.backends.graphs.network import Network


class TensorRTBackend(Backend):
    """Builds plans, which belong to compute capabilities and to a version of the library."""

    name = "tensorrt"
    description = "CUDA"
    layout = Layout.SLOTS
    takes_image_sizes = False
    devices = ("cuda",)
    takes_targets = True
    takes_quantized = True
    quantizations = ("int8", "int4", "int4-asymmetric", "w8a8", "fp8")

    def check_build(self, build: BuildConfig) -> None:
        from vlm.backends.onnxruntime.session import require
        from vlm.backends.tensorrt.builder import PlanBuilder

        PlanBuilder.from_config(build)
        require("onnx", "onnxscript", "onnxruntime")

    def for_this_machine(self, build: BuildConfig) -> BuildConfig:
        from vlm.backends.tensorrt import targets

        return targets.for_this_gpu(build)

    def cache_key(self) -> dict[str, str]:
        from vlm.backends.tensorrt import library

        return library.versions()

    def write(self, job: BuildJob) -> BuiltFiles:
        """Writes <graph>/rank0.plan."""
        from vlm.artifacts.native.manifest import file_entries
        from vlm.backends.tensorrt.engine import write_plans

        plans, info = write_plans(job)
        return BuiltFiles(file_entries(job.folder, plans), info.built_for())

    def resolve_device(self, name: str) -> torch.device:
        if name == "cpu":
            raise InputError("device is cpu; a tensorrt engine runs on cuda, build for torch or onnxruntime instead.")
        return super().resolve_device(name)

    def fit_runtime(self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> RuntimeConfig:
        from vlm.backends.tensorrt.engine import within_plans

        return within_plans(engine, runtime, device)

    def load(self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> dict[str, Network]:
        from vlm.backends.tensorrt.engine import load_plans

        return load_plans(engine, device)
