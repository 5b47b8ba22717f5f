"""Scales of layers' inputs -> the rows of the norms and products that these inputs come from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.quant.producer import Producer, producers_of
from vlm.layers.quant.quantization import Quantization
from vlm.registry.catalogs import model_spec


@dataclass(frozen=True)
class Fold:
    """Says which tensors of a network are multiplied by the scale of a layer's inputs, and in which rows."""

    tensors: tuple[str, ...]
    rows: slice

    def multiplied(self, values: Tensor, scale: Tensor) -> Tensor:
        """Returns one of these tensors with its rows times the scale [rows], in its own type."""
        factor = scale.view(-1, *(1 for _ in values.shape[1:]))
        result = values.clone()
        result[self.rows] = (values[self.rows].float() * factor).to(values.dtype)
        return result


def folds_of(checkpoint: Checkpoint, quantization: Quantization) -> dict[str, Fold]:
    """Returns where the scales of layers' inputs can be folded, by the layers' names: "decoder.blocks.0.ffn.up"."""
    folds = {}
    for role, model in checkpoint.roles.items():
        spec, context = model_spec(model), ModelContext(quantization=quantization.of_role(role))
        network = spec.skeleton(spec.config.from_dict(checkpoint.config(role)), context)
        folds |= {f"{role}.{path}": _fold(network, producer) for path, producer in producers_of(network).items()}
    return folds


def _fold(network: nn.Module, producer: Producer) -> Fold:
    module = network.get_submodule(producer.path)
    scale, rows = "weight", slice(None)
    if isinstance(module, Linear):
        assert producer.part is not None
        scale, rows = module.method.row_scale, module.rows_of(producer.part)
    names = (name for name, _ in module.named_parameters() if name in (scale, "bias"))
    return Fold(tuple(f"{producer.path}.{name}" for name in names), rows)
