"""GPTQ (Frantar et al., arXiv:2210.17323): column by column, the rounding error of each is made up for by the weights
of those that follow, as the Hessian of the products' error says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.errors import InputError
from vlm.layers.quant.int4 import Int4
from vlm.quantize.algorithms.base import Parameters
from vlm.quantize.statistics import Needs, Statistics

DAMPING = 0.01  # of the mean of the Hessian's diagonal, added to it


@dataclass(frozen=True)
class Gptq:
    """`act_order`: columns of the largest inputs first, in groups of that order."""

    method: Int4
    act_order: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(hessian=True)

    def parameters(self, weight: Tensor, statistics: Statistics | None) -> Parameters:
        assert statistics is not None and statistics.hessian is not None
        hessian = statistics.hessian
        if not self.act_order:
            return self._rounded(weight.clone(), hessian)
        order = hessian.diagonal().argsort(descending=True)
        parameters = self._rounded(weight[:, order], hessian[order][:, order])
        return parameters | {"input_order": order.int()}

    def _rounded(self, weight: Tensor, hessian: Tensor) -> Parameters:
        """Rounds a weight [out, in], which is changed."""
        inverse = inverse_factor(hessian)
        size, parts = self.method.group_size, []
        for start in range(0, weight.shape[1], size):
            group = slice(start, start + size)
            scale, zero = self.method.grid(weight[:, None, group])
            levels, errors = self._group(weight[:, group], scale, zero, inverse[group, group])
            weight[:, start + size :] -= errors @ inverse[group, start + size :]
            parts.append((levels, scale, zero))
        levels, scale, zero = (torch.cat(each, 1) for each in zip(*parts, strict=True))
        return self.method.packed(levels, scale, zero)

    def _group(self, weight: Tensor, scale: Tensor, zero: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
        """Rounds the columns [out, group] of one group, a grid [out, 1] each row, and returns their levels and what
        each column's error is in units of the factor's diagonal."""
        levels, errors = torch.empty_like(weight), torch.empty_like(weight)
        for i in range(weight.shape[1]):
            column = weight[:, i : i + 1]
            levels[:, i : i + 1] = level = self.method.levels(column, scale, zero)
            errors[:, i : i + 1] = error = (column - (level - zero) * scale) / inverse[i, i]
            weight[:, i + 1 :] -= error * inverse[i, i + 1 :]
        return levels, errors


def inverse_factor(hessian: Tensor) -> Tensor:
    """Returns the upper Cholesky factor of the inverse of a Hessian [in, in]; more is added to the diagonal until there
    is one. Inputs that were always 0 stand for themselves. Raises InputError for inputs that overflowed."""
    if not hessian.isfinite().all():
        raise InputError("what a layer is given on these inputs is not finite; calibrate with --dtype float32.")
    diagonal = hessian.diagonal()
    hessian = hessian + torch.diag((diagonal == 0).to(hessian.dtype))
    damping = DAMPING * float(hessian.diagonal().mean())
    while True:
        damped = hessian + damping * torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
        lower, failed = torch.linalg.cholesky_ex(damped)
        if not failed:
            inverse, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed:
                return inverse
        damping *= 10
