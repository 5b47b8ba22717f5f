"""The backend `onnxruntime`: exported graphs on the CPU, for ONNX Runtime."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from vlm.backends.base import Backend, BuildJob, BuiltFiles, Layout, Preference
from vlm.backends.onnxruntime.group_sizes import group_errors
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import InputError

if TYPE_CHECKING:
    import torch

    from vlm.artifacts.native.engine_dir import EngineDir
    from vlm.backends.graphs.network import Network

NO_BFLOAT16 = "onnxruntime does not compute in bfloat16 on the CPU"


class OnnxRuntimeBackend(Backend):
    """Exports every graph, compares it with its network, and keeps the file."""

    name = "onnxruntime"
    description = "CPU"
    layout = Layout.SLOTS
    takes_image_sizes = False
    devices = ("cpu",)
    dtypes = ("float32", "float16")
    takes_quantized = True
    quantizations = ("int8", "int4", "int4-asymmetric", "w8a8")  # what the weights meet is rounded to 8 bits, too
    rank = 1

    def errors(self, build: BuildConfig) -> list[str]:
        errors = []
        if build.quantization in self.quantizations and build.dtype != "float32":
            errors.append(f"quantization {build.quantization} needs dtype float32, not {build.dtype}")
        if build.dtype == "bfloat16":
            errors.append(f"{NO_BFLOAT16}, build it with float32 or float16")
        return errors + group_errors(build)

    def default_dtype(self, device: str) -> str:
        return "float32"

    def preference(self, device: str, dtype: str | None) -> Preference | None:
        if device not in self.devices:
            return None
        try:
            release = version("onnxruntime")
        except PackageNotFoundError:
            return Preference(takes=False, reason="onnxruntime is not installed: pip install 'vlm-runtime[onnx]'")
        if dtype == "bfloat16":
            return Preference(takes=False, reason=NO_BFLOAT16)
        return Preference(takes=True, reason=f"onnxruntime {release} is installed, and the device is the CPU")

    def check_build(self, build: BuildConfig) -> None:
        from vlm.backends.onnxruntime.session import require

        require("onnx", "onnxscript", "onnxruntime")

    def write(self, job: BuildJob) -> BuiltFiles:
        """Writes <graph>/model.onnx, and beside it the weights where they are large."""
        from vlm.artifacts.native.manifest import file_entries
        from vlm.backends.onnxruntime.engine import write_graphs
        from vlm.backends.onnxruntime.products import FORM

        files = write_graphs(job, job.folder, FORM)
        return BuiltFiles(file_entries(job.folder, files), {"devices": list(self.devices)})

    def resolve_device(self, name: str) -> torch.device:
        import torch

        if name not in ("auto", "cpu"):
            raise InputError(f"an onnxruntime engine runs on cpu, not on {name}; give cpu, or build for torch.")
        return torch.device("cpu")

    def load(self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> dict[str, Network]:
        from vlm.backends.onnxruntime.engine import load_graphs

        return load_graphs(engine, runtime)
