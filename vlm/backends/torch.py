"""The backend `torch`: the modules themselves, on the CPU and on CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlm.backends.base import Backend, BuildJob, BuiltFiles, Layout, Preference
from vlm.config import RuntimeConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vlm.artifacts.engine_dir import EngineDir


class TorchBackend(Backend):
    """Keeps the weights as they are, and runs the model's own modules."""

    name = "torch"
    description = "CPU and CUDA"
    layout = Layout.PAGED
    devices = ("cpu", "cuda")

    def preference(self, device: str, dtype: str | None) -> Preference:
        return Preference(True, f"it is what runs on {device}")

    def write(self, job: BuildJob) -> BuiltFiles:
        """Writes <role>/rank0.safetensors."""
        from vlm.artifacts.checkpoint import write_roles

        files = write_roles(job.folder, job.roles, "Building the engine", job.progress)
        return BuiltFiles(files, {"devices": list(self.devices)})

    def load(self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> dict[str, nn.Module]:
        from vlm.registry.networks import load_network

        weights = {role: engine.weights(role, device=device) for role in engine.loaded_roles}
        return {role: load_network(engine, role, tensors, device) for role, tensors in weights.items()}
