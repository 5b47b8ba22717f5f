"""The backend `torch`: the modules themselves, on the CPU and on CUDA."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlm.backends.base import Backend, BuildJob, BuiltFiles, Layout, Preference
from vlm.config import RuntimeConfig
from vlm.errors import EngineError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from vlm.artifacts.native.engine_dir import EngineDir
    from vlm.artifacts.native.roles import RoleWeights
    from vlm.parallel.collectives import Ranks

FIRST_WITH_FP8 = (8, 9)  # compute capability


class TorchBackend(Backend):
    """Keeps the weights as they are, and runs the model's own modules."""

    name = "torch"
    description = "CPU and CUDA"
    layout = Layout.PAGED
    devices = ("cpu", "cuda")
    takes_quantized = splits = loads_data_alone = True
    quantizations = ("int8", "int4", "int4-asymmetric", "fp8", "w8a8")

    def preference(self, device: str, dtype: str | None) -> Preference:
        return Preference(takes=True, reason=f"it is what runs on {device}")

    def write(self, job: BuildJob) -> BuiltFiles:
        """Writes <role>/rank<rank>.safetensors; of networks that every rank runs whole rank 0's alone."""
        from vlm.artifacts.native.roles import write_roles
        from vlm.artifacts.weights import write_hashed

        parts = job.parts if job.is_split else _cut(job)
        files = write_roles(job.folder, parts, "Building the engine", job.progress, job.workers, write=write_hashed)
        return BuiltFiles(files, {"devices": list(self.devices)})

    def load(self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> dict[str, nn.Module]:
        from vlm.parallel.collectives import ALONE

        return self.load_part(engine, runtime, device, ALONE)

    def load_part(
        self, engine: EngineDir, runtime: RuntimeConfig, device: torch.device, ranks: Ranks
    ) -> dict[str, nn.Module]:
        from vlm.layers.adapters.base import AdapterRoom
        from vlm.layers.heads import with_padded_heads
        from vlm.registry.networks import load_network, mapping_of

        check_fp8(engine, runtime, device)
        adapters, networks, mapping = AdapterRoom.from_runtime(runtime), {}, mapping_of(engine, ranks.rank)
        for role in engine.loaded_roles:
            tensors = engine.weights(role, device=device, rank=mapping.of_role(role).rank)
            if role == "decoder":
                tensors = with_padded_heads(tensors)
            networks[role] = load_network(engine, role, tensors, device, ranks, adapters=adapters)
        return networks


def _cut(job: BuildJob) -> dict[tuple[str, int], RoleWeights]:
    """Returns what each rank keeps of whole networks, which are quantized before they are cut."""
    from vlm.layers.quant.methods import quantization_of
    from vlm.registry.weights.quantized import quantized
    from vlm.registry.weights.sharded import sharded_by_rank

    kept = quantization_of(job.build.quantization, job.quantization_options)
    roles = {role: quantized(weights, kept.of_role(role)) for role, weights in job.roles.items()}
    return sharded_by_rank(roles, kept, job.build)


def check_fp8(engine: EngineDir, runtime: RuntimeConfig, device: torch.device) -> None:
    """Raises EngineError for what is kept in FP8, on a GPU without it."""
    import torch

    if device.type != "cuda" or torch.cuda.get_device_capability(device) >= FIRST_WITH_FP8:
        return
    name, first = torch.cuda.get_device_name(device), ".".join(map(str, FIRST_WITH_FP8))
    if engine.build.quantization == "fp8":
        raise EngineError(
            f"the weights are kept in fp8, which {name} does not have (compute capability {first} and newer do); build"
            " with quantization int8 or w8a8."
        )
    if runtime.kv_cache_dtype == "fp8":
        raise EngineError(
            f"kv_cache_dtype is fp8, which {name} does not have (compute capability {first} and newer do); give int8.",
            settings=("kv_cache_dtype",),
        )
