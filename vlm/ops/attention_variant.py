"""What some models do to attention scores beside scaling them: cap them, or look no further than a window."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class AttentionVariant(NamedTuple):
    """Says how scores are changed, and which keys are seen beside what causality allows."""

    softcap: float | None = None  # a score s becomes softcap · tanh(s / softcap) (Gemma Team, arXiv:2408.00118)
    reach: int | None = None  # of a sliding window: how far from the query a key may lie
    ahead: int | None = None  # of one whose sides differ: how far after the query; None: as far as before it

    @property
    def reach_ahead(self) -> int | None:
        return self.reach if self.ahead is None else self.ahead

    def capped(self, scores: Tensor) -> Tensor:
        return scores if self.softcap is None else self.softcap * (scores / self.softcap).tanh()

    def within(self, mask: Tensor | None, distances: Tensor) -> Tensor | None:
        """Returns a mask, of what is seen or added, that hides what lies beyond the window, too. `distances`: of keys
        from queries, those after them above 0, of the mask's shape or one that becomes it."""
        if self.reach is None or self.reach_ahead is None:
            return mask
        near = (distances >= -self.reach) & (distances <= self.reach_ahead)
        if mask is None:
            return near
        return mask & near if mask.dtype == torch.bool else mask.masked_fill(~near, float("-inf"))


PLAIN = AttentionVariant()


class Scores(NamedTuple):
    """Says how a layer scores keys: q kᵀ · scale + bias, as the variant says."""

    scale: float
    bias: Tensor | None = None  # [H, 2 M + 1] by distance
    variant: AttentionVariant = PLAIN


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, variant: AttentionVariant) -> Tensor:
    """Computes softmax(capped(q kᵀ · scale) + mask) v, float32: q [..., S, D], k and v [..., T, D]; mask: what is seen
    (bool) or added, the variant's window within it -> [..., S, D]"""
    if variant.softcap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    scores = variant.capped(q @ k.mT * scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    return scores.softmax(-1) @ v
