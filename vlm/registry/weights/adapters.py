"""What an adapter changes of a network -> the banks of its layers; of a rank's part its rows and columns."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vlm.layers.adapters.base import AdapterBank, BankLayers, BankWeights, Layers
from vlm.layers.linear import Linear
from vlm.layers.quant.base import Cut

BLOCK = 1 << 24  # values of a weight that are looked at at once


def put_adapter(network: nn.Module, slot: int, layers: BankLayers, *, device: torch.device, dtype: torch.dtype) -> bool:
    """Gives the layers of a network, which has banks, what an adapter changes of them, in place of what lay in its
    slot. What other stages of a pipeline run is passed over. Says whether banks have grown."""
    has_grown = False
    for path, linear in network.named_modules():
        if not isinstance(linear, Linear) or not isinstance(bank := linear.adapters, AdapterBank):
            continue
        parts = bank.parts
        bank.clear(slot)
        for whole in layers.get(path, ()):
            _put(bank, slot, linear, whole, device=device, dtype=dtype)
        has_grown |= bank.parts != parts
    return has_grown


def _put(
    bank: AdapterBank, slot: int, linear: Linear, whole: BankWeights, *, device: torch.device, dtype: torch.dtype
) -> None:
    for part, rows in zip(linear.part_sizes, linear.rows, strict=True):
        if (weights := whole.part(rows, linear.columns)) is not None:
            bank.put(slot, part, weights.to(device, dtype))


@torch.no_grad()
def beside_network(network: nn.Module, layers: Layers) -> tuple[BankLayers, list[str]]:
    """Returns what an adapter changes of the layers that this process runs as their banks hold it, and the paths of
    those in which it divides by the length of a row of zeros. All ranks that split the layers call it together."""
    found, undefined = {}, []
    for path, linear in network.named_modules():
        if isinstance(linear, Linear) and path in layers:
            base = _Base(linear)
            found[path] = [each for whole in layers[path] for each in whole.beside(base)]
            undefined += [path] * base.has_zeros
    return found, undefined


@dataclass
class _Base:
    """A Linear's weight and bias, or a rank's part of them, as adapters ask for them."""

    linear: Linear
    has_zeros: bool = field(default=False, init=False)

    def bias(self, count: int) -> Tensor | None:
        if self.linear.bias is None:
            return None
        whole = torch.zeros(count)
        if not self.linear.is_summand or self.linear.shard.rank == 0:  # once in the sum
            for rows, own in self._places():
                whole[rows] = self.linear.bias[own].float().cpu()
        return whole

    def row_norms(self, a: Tensor, b: Tensor, rows: Tensor) -> Tensor:
        device = next(self.linear.parameters()).device
        squares = torch.ones(len(b), device=device)
        a, b = a[:, self.linear.columns].to(device), b.to(device)
        for place, own in self._places():
            if rows[place].any():
                squares[place] = self._squares(own, a, b[place])
        if self.linear.is_summand:
            squares = self.linear.collectives.all_reduce(squares)
        norms = squares.sqrt().cpu()
        self.has_zeros |= bool(norms[rows].eq(0).any())
        return norms

    def _places(self) -> list[tuple[slice, slice]]:
        """Returns of each part its rows in the whole weight, and in that which is here."""
        bounds = itertools.pairwise(itertools.accumulate(self.linear.part_sizes.values(), initial=0))
        return [(rows, slice(*own)) for rows, own in zip(self.linear.rows, bounds, strict=True)]

    def _squares(self, own: slice, a: Tensor, b: Tensor) -> Tensor:
        """Returns the sums of the squares of W + b a, W being some rows of the weight: as many as b [n, rank] has."""
        step, found = max(1, BLOCK // self.linear.in_features), []
        for begin in range(0, len(b), step):
            part = b[begin : begin + step]
            weight = self._rows(slice(own.start + begin, own.start + begin + len(part)))
            found.append(torch.addmm(weight, part, a).square().sum(1))
        return torch.cat(found)

    def _rows(self, rows: slice) -> Tensor:
        """Returns rows of the weight [n, in] float32, dequantized where it is quantized."""
        method, cut = self.linear.method, Cut([rows], slice(0, self.linear.in_features))
        names = method.layout(self.linear.in_features, self.linear.part_sizes)
        return method.dequantize({name: method.cut(name, getattr(self.linear, name), cut) for name in names})
