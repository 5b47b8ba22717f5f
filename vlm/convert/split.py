"""A checkpoint -> the same, split among ranks: the file that each of them will load."""

from __future__ import annotations

from pathlib import Path

from vlm.artifacts.native.checkpoint import Checkpoint, write_parts
from vlm.artifacts.progress import Progress
from vlm.config import BuildConfig
from vlm.convert.role_weights import kept_quantization, role_weights
from vlm.convert.values import invalid_values
from vlm.errors import InputError
from vlm.registry.catalogs import configs_of
from vlm.registry.weights.sharded import sharded_by_rank


def split_checkpoint(
    checkpoint: Checkpoint, out: Path, build: BuildConfig, progress: Progress | None = None
) -> Checkpoint:
    """Writes the part of each rank of a whole checkpoint at `out`, whole or not at all, as a build for its ranks
    cuts them. An older checkpoint there is replaced.

    Raises InputError for a checkpoint that is split already, ConfigError for a network that so many ranks cannot split,
    CheckpointError for weights that are damaged.
    """
    if checkpoint.is_split:
        raise InputError(f"{checkpoint.path} is split already; give the whole model that it was made of.")
    kept = kept_quantization(checkpoint)
    with invalid_values(checkpoint.path):
        configs = configs_of(checkpoint)
    roles = {role: role_weights(checkpoint, role, 0, configs[role]) for role in checkpoint.roles}
    parts = sharded_by_rank(roles, kept, build)
    manifest = {**checkpoint.manifest, "mapping": build.mapping}
    return write_parts(out, manifest, parts, processor_files=checkpoint.processor_files, progress=progress)
