"""The weights of a whole network -> those of the part of it that one rank runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from torch import Tensor, nn

from vlm.artifacts.native.roles import RoleWeights, parts_of
from vlm.artifacts.weights import TensorSource
from vlm.config import BuildConfig
from vlm.errors import ConfigError, listed
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
    roles: Mapping[str, RoleWeights], quantization: Quantization, build: BuildConfig
) -> dict[tuple[str, int], RoleWeights]:
    """Returns the parts of each role's weights that ranks keep, by role and number; what all run whole is part 0.
    Raises ConfigError for a network that so many ranks cannot split, and as check_encoder_ranks."""
    check_encoder_ranks(build, roles)
    contexts = {
        (role, part): part_context(role, part, build.mapping, quantization)
        for role, part in parts_of(roles, build.mapping)
    }
    return {(role, part): sharded(roles[role], context) for (role, part), context in contexts.items()}


def check_encoder_ranks(build: BuildConfig, roles: Collection[str]) -> None:
    """Raises ConfigError for ranks of an encoder of its own where the roles have none beside a decoder."""
    if build.encoder_tp_size is not None and not {"encoder", "decoder"} <= set(roles):
        raise ConfigError(
            f"encoder_tp_size is {build.encoder_tp_size}, which is for models of an encoder of texts and a decoder,"
            f" this one's parts are {listed(sorted(roles))}; leave it out.",
            settings=("encoder_tp_size",),
        )


def part_context(role: str, part: int, mapping: Mapping[str, int], quantization: Quantization) -> ModelContext:
    """Returns what a part of a role's network is made in; `mapping`: as BuildConfig has it."""
    own = ranks.Mapping(**mapping).of_role(role)
    return ModelContext(replace(own, rank=part), quantization.of_role(role))


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
            " cannot share them; leave pp_size out.",
            settings=("pp_size",),
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
