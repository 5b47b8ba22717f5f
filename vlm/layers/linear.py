"""The affine layer: the one matrix product of every network."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from vlm.errors import ConfigError, listed
from vlm.layers.context import ModelContext
from vlm.layers.forward_batch import ForwardBatch
from vlm.layers.quant.base import LinearMethod
from vlm.layers.quant.dense import Dense
from vlm.layers.quant.quantization import Quantization
from vlm.ops.activation import Activation
from vlm.ops.products.activated import activated
from vlm.parallel.mapping import Shard

Axis = Literal["column", "row"]


class Linear(nn.Module):
    """Computes x Wᵀ + b of x [..., in_features], packed rows [R, in_features] most often.

    `out_features` is a size, or the sizes of named parts that one product computes side by side: {"q": 512, "k": 64,
    "v": 64}. What takes the result apart reads them from `part_sizes`, not from a configuration: `axis` says what ranks
    split, each part of the outputs ("column"), the inputs ("row", each rank's result is a summand) or nothing (None),
    and the sizes here are those of this rank. The weight is kept as it is, `weight` [out, in], until `keep` says
    otherwise (vlm.layers.quant). `out_fp32`: in float16 the result is float32. `units`: in how many pieces that stay
    whole the outputs of a part are split, or the inputs ("in"): heads (vlm.parallel.mapping.Shard.place).
    """

    bias: nn.Parameter | None
    method: LinearMethod

    def __init__(
        self,
        in_features: int,
        out_features: int | Mapping[str, int],
        *,
        context: ModelContext,
        bias: bool = True,
        axis: Axis | None = None,
        out_fp32: bool = False,
        units: Mapping[str, int] | None = None,
    ):
        super().__init__()
        parts = out_features if isinstance(out_features, Mapping) else {"out": out_features}
        self.axis, self.out_fp32 = axis, out_fp32
        self.shard = Shard() if axis is None else context.mapping.shard
        self.collectives = context.collectives
        places = _places({"in": in_features, **parts}, self.shard, axis, units or {})
        self.columns = places.pop("in")  # those of the whole weight that this rank has
        self.in_features = _length(self.columns)
        self.part_sizes = {name: _length(place) for name, place in places.items()}
        begins = itertools.accumulate(parts.values(), initial=0)
        # and its rows, a run of them for each part
        self.rows = [slice(at + p.start, at + p.stop) for at, p in zip(begins, places.values(), strict=False)]
        self._lay_out(Dense())
        self.register_parameter("bias", _parameter(torch.empty(self.out_features)) if bias else None)
        room = context.adapters
        self.adapters = None if room is None else room.bank(self.in_features, self.part_sizes)

    @property
    def is_summand(self) -> bool:
        """Says whether a result is to be added to those of other ranks."""
        return self.axis == "row" and self.shard.size > 1

    def keep(self, method: LinearMethod) -> None:
        """Lays out the weight, whose values are yet to come, as a method keeps it."""
        for name in self.method.layout(self.in_features, self.part_sizes):
            delattr(self, name)
        self._lay_out(method)

    def _lay_out(self, method: LinearMethod) -> None:
        self.method = method
        for name, spec in method.layout(self.in_features, self.part_sizes).items():
            self.register_parameter(name, _parameter(torch.empty(spec.shape, dtype=spec.dtype)))

    @property
    def out_features(self) -> int:
        """Returns the width of a result, all parts together."""
        return sum(self.part_sizes.values())

    def rows_of(self, part: str) -> slice:
        """Returns which rows of the whole weight this rank has of a part."""
        return self.rows[list(self.part_sizes).index(part)]

    def forward(self, x: Tensor, batch: ForwardBatch | None = None, activation: Activation | None = None) -> Tensor:
        """Maps [..., in_features] -> [..., out_features], or to what these are activated to; batch: of x
        [R, in_features], whose rows may have adapters"""
        if not self.is_summand:
            if self.adapter_ids(batch) is None:
                return self.method.apply(self, x, self.bias, activation)
            return activated(self.adapted(x, self.bias, batch), activation)
        assert activation is None, "it is not that of a summand"
        bias = self.bias if self.shard.rank == 0 else None  # once in the sum
        return self.collectives.all_reduce(self.adapted(x, bias, batch))

    def adapted(self, x: Tensor, bias: Tensor | None, batch: ForwardBatch | None) -> Tensor:
        """Computes x Wᵀ + bias, changed for each row by its adapter."""
        ids, product = self.adapter_ids(batch), lambda x: self.method.apply(self, x, bias)
        return product(x) if self.adapters is None or ids is None else self.adapters(x, ids, product)

    def adapter_ids(self, batch: ForwardBatch | None) -> Tensor | None:
        """Returns the rows' adapters [R] int32, None where none changes a result."""
        return None if batch is None or self.adapters is None or self.adapters.is_empty else batch.adapter_ids

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.part_sizes}, axis={self.axis}"


def _places(sizes: Mapping[str, int], shard: Shard, axis: Axis | None, units: Mapping[str, int]) -> dict[str, slice]:
    """Returns which of the inputs ("in") and of each part's outputs a rank has."""
    is_split = lambda name: axis == ("row" if name == "in" else "column")  # noqa: E731
    return {
        name: shard.place(size, units.get(name)) if is_split(name) else slice(0, size) for name, size in sizes.items()
    }


def _length(place: slice) -> int:
    return place.stop - place.start


def keep_weights(network: nn.Module, quantization: Quantization) -> nn.Module:
    """Lays out the weights of a network, which are dense and have no values yet, as a quantization says. Raises
    ConfigError that names the layers which its method cannot keep."""
    refused: dict[str, tuple[ConfigError, list[str]]] = {}  # an error and the layers that it is of, by its sentence
    for path, module in network.named_modules():
        if isinstance(module, Linear):
            try:
                module.keep(quantization.method_for(path))
            except ConfigError as error:
                _, names = refused.setdefault(str(error), (error, []))
                names.append(f"{quantization.role}.{path}".removeprefix("."))
    if refused:
        error, names = next(iter(refused.values()))
        raise ConfigError(f"{listed(names, 2)}: {error}", settings=error.settings)
    return network


def _parameter(values: Tensor) -> nn.Parameter:
    return nn.Parameter(values, requires_grad=values.is_floating_point())
