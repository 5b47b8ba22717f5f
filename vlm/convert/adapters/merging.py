"""A checkpoint and an adapter -> the checkpoint of the model that both are together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import Tensor

from vlm.artifacts.native.checkpoint import Checkpoint, write_parts
from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.progress import Progress
from vlm.artifacts.weights import TensorSource
from vlm.convert.adapters.placing import PlacedAdapter, read_all
from vlm.convert.role_weights import role_weights
from vlm.convert.values import invalid_values
from vlm.errors import CheckpointError, InputError
from vlm.registry.catalogs import configs_of, family


def merge_adapter(checkpoint: Checkpoint, folder: Path, out: Path, *, progress: Progress | None = None) -> Checkpoint:
    """Writes a whole checkpoint with what an adapter changes done to its weights at `out`, whole or not at all; visual
    networks are merged, too, and tensors that the adapter's folder holds in place of the model's own.

    Raises InputError for weights that are quantized or split, CheckpointError for sums that are too large for their
    type, and as read_all and role_weights.
    """
    if checkpoint.quantization is not None or checkpoint.is_split:
        kept = f"quantized ({checkpoint.quantization})" if checkpoint.quantization else "split among ranks"
        raise InputError(f"the model is {kept}, so nothing can be merged into it; give the whole one, unquantized.")
    with invalid_values(checkpoint.path):
        configs = configs_of(checkpoint)
    adapter = read_all(folder, family(checkpoint.family), configs, tuple(checkpoint.roles))
    weights = {role: role_weights(checkpoint, role, 0, configs[role]) for role in checkpoint.roles}
    parts = {(role, 0): _merged(own, adapter, role, folder) for role, own in weights.items()}
    return write_parts(out, checkpoint.manifest, parts, processor_files=checkpoint.processor_files, progress=progress)


def _merged(weights: RoleWeights, adapter: PlacedAdapter, role: str, folder: Path) -> RoleWeights:
    source, layers, replaced = weights.source, adapter.layers.get(role, {}), adapter.tensors.get(role, {})

    def read(name: str) -> Tensor:
        values, (path, _, tensor) = source.read(name), name.rpartition(".")
        for each in replaced.get(name, ()):
            values = each.of(values)
        changes = layers.get(path, ()) if tensor in ("weight", "bias") else ()
        for change in changes:
            merge = change.merged if tensor == "weight" else change.merged_bias
            try:
                values = merge(values.float()).to(values.dtype)
            except ValueError as error:
                raise CheckpointError(f"the adapter {folder} {error}: {name}; it was made for other weights.") from None
        if (changes or name in replaced) and not values.isfinite().all():
            kind = str(values.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"the adapter {folder} has values that make those of {name} too large for {kind}; convert its model"
                " from a folder of float32 or bfloat16."
            )
        return values

    return replace(weights, source=TensorSource(source.layout, read))
