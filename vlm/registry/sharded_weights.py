"""The weights of a whole network -> those of the part of it that one rank runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from vlm.artifacts.checkpoint import REPLICATED, RoleWeights, parts_of
from vlm.artifacts.weights import TensorSource
from vlm.errors import ConfigError
from vlm.layers.blocks import Blocks
from vlm.layers.context import ModelContext
from vlm.layers.embedding import Embedding
from vlm.layers.linear import Linear
from vlm.layers.quant.base import Cut
from vlm.layers.quant.quantization import Quantization
from vlm.layers.relative_bias import RelativeBias
from vlm.parallel import mapping as ranks
from vlm.registry.catalogs import model_spec


def sharded_by_rank(
    roles: Mapping[str, RoleWeights], quantization: Quantization, *, tp_size: int, pp_size: int
) -> dict[tuple[str, int], RoleWeights]:
    """Returns what each rank keeps of each role's weights, by role and rank; what all run whole is rank 0's. Raises
    ConfigError for a network that so many ranks cannot split."""
    contexts = {
        (role, rank): part_context(role, ranks.Mapping(tp_size, pp_size, rank), quantization)
        for role, rank in parts_of(roles, tp_size * pp_size)
    }
    return {(role, rank): sharded(roles[role], context) for (role, rank), context in contexts.items()}


def part_context(role: str, mapping: ranks.Mapping, quantization: Quantization) -> ModelContext:
    """Returns what the part of a role's network that a rank keeps is made in."""
    own = ranks.Mapping() if role in REPLICATED else mapping
    return ModelContext(own, quantization.of_role(role))


def sharded(weights: RoleWeights, context: ModelContext) -> RoleWeights:
    """Returns what one rank keeps of a network's weights, each tensor cut when it is written. Raises ConfigError for a
    network that so many ranks cannot split."""
    if context.mapping.size == 1:
        return weights
    spec, source = model_spec(weights.model), weights.source
    config = spec.config.from_dict(weights.config)
    network = spec.skeleton(config, context)
    if context.mapping.pp > 1 and not any(isinstance(module, Blocks) for module in network.modules()):
        raise ConfigError(
            f"the {weights.model} network does not keep its layers in Blocks (vlm.layers.blocks), so pipeline stages"
            " cannot share them; leave pp_size out."
        )
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    layout = {name: (source.layout[name][0], shape) for name, shape in shapes.items()}
    return replace(weights, source=TensorSource(layout, lambda name: _part(network, name, source.read(name))))


def _part(network: nn.Module, name: str, values: Tensor) -> Tensor:
    """Returns the rank's part of one tensor of the whole network: what no layer splits is whole on every rank."""
    path, _, parameter = name.rpartition(".")
    layer = network.get_submodule(path)
    if isinstance(layer, RelativeBias | Embedding):
        return layer.cut(values)
    if not isinstance(layer, Linear) or layer.axis is None:
        return values
    cut = Cut(layer.rows, layer.columns)
    return cut.of_rows(values) if parameter == "bias" else layer.method.cut(parameter, values, cut)
