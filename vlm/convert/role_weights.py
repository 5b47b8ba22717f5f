"""The weights of a checkpoint -> a role's, or a rank's part of them, that are known to fit its network."""

from __future__ import annotations

import torch

from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.weights import TensorSource
from vlm.config import Config
from vlm.convert.roles import module_layout
from vlm.convert.values import invalid_values
from vlm.errors import CheckpointError, listed
from vlm.layers.quant.methods import METHODS, quantization_of
from vlm.layers.quant.quantization import Quantization
from vlm.registry.catalogs import model_spec
from vlm.registry.weights.quantized import own_types, quantized_layers
from vlm.registry.weights.sharded import part_context


def kept_quantization(checkpoint: Checkpoint) -> Quantization:
    """Returns how a checkpoint keeps its weights. Raises CheckpointError for a way that is not known."""
    if checkpoint.quantization not in (None, *METHODS):
        raise CheckpointError(
            f"{checkpoint.path} keeps its weights as {checkpoint.quantization}, which this vlm does not know; convert"
            " it again."
        )
    with invalid_values(checkpoint.path):
        return quantization_of(checkpoint.quantization, checkpoint.quantization_options)


def role_weights(checkpoint: Checkpoint, role: str, rank: int, config: Config) -> RoleWeights:
    """Returns what a checkpoint's file holds, each tensor read when it is asked for. Raises CheckpointError for a file
    that does not fit the role's network."""
    source = TensorSource.from_tensors(checkpoint.weights(role, rank))
    own_dtypes, shapes = _expected(checkpoint, role, rank, config)
    file, layout = checkpoint.weight_file(role, rank), source.layout
    names = sorted(shapes.keys() | layout.keys())
    if mismatches := [name for name in names if name not in layout or layout[name][1] != shapes.get(name)]:
        raise CheckpointError(f"{file} does not fit its config.json in {listed(mismatches)}; convert it again.")
    if mismatches := [name for name, own in own_dtypes.items() if layout[name][0] != own]:
        raise CheckpointError(
            f"{file} does not hold {listed(mismatches)} as {checkpoint.quantization} keeps them; convert it again."
        )
    return RoleWeights(checkpoint.roles[role], checkpoint.config(role), source, frozenset(own_dtypes))


def _expected(
    checkpoint: Checkpoint, role: str, rank: int, config: Config
) -> tuple[dict[str, torch.dtype], dict[str, tuple[int, ...]]]:
    """Returns the types of what is quantized, and the shapes of all tensors, by their names."""
    spec, quantization = model_spec(checkpoint.roles[role]), kept_quantization(checkpoint)
    with invalid_values(checkpoint.path):
        context = part_context(role, rank, checkpoint.mapping, quantization)
        shapes = {name: shape for name, (_, shape) in module_layout(spec, config, context).items()}
        types = own_types(quantized_layers(spec, config, context.quantization))
        return {name: own for name, own in types.items() if name in shapes}, shapes
