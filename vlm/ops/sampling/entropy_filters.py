"""Filters of a draw that go by entropy or by probabilities alone, as Hugging Face's warpers of these names.

top-h: Potraghloo et al. (arXiv:2509.02510); typical: Meister et al. (arXiv:2202.00666); epsilon and eta: Hewitt,
Manning and Liang (arXiv:2210.15191).
"""

from __future__ import annotations

import torch
from torch import Tensor

TOP_H_TOKENS = 100  # the likeliest ones that top-h looks at


def top_h(logits: Tensor, share: Tensor) -> Tensor:
    """Keeps of each row [R, V] the likeliest tokens that make up `share` [R] of its entropy; 0 keeps all."""
    values, ids = logits.topk(min(TOP_H_TOKENS, logits.shape[1]), dim=-1)
    terms = _entropy_terms(values.log_softmax(-1))
    inside = terms.cumsum(-1) <= share[:, None] * terms.sum(-1, keepdim=True)
    inside[:, 0] = True
    keep = torch.zeros_like(logits, dtype=torch.bool).scatter_(1, ids, inside)
    return logits.masked_fill(~keep & (share > 0)[:, None], float("-inf"))


def last(logits: Tensor, typical_p: Tensor, epsilon: Tensor, eta: Tensor) -> Tensor:
    """Applies the filters after top-k, top-p and min-p. logits [R, V], the others [R]; each row keeps its likeliest."""
    logits = typical(logits, typical_p)
    logits = _likely(logits, epsilon)
    entropy = _entropy_terms(logits.log_softmax(-1)).sum(-1)
    return _likely(logits, torch.minimum(eta, eta.sqrt() * (-entropy).exp()))


def typical(logits: Tensor, mass: Tensor) -> Tensor:
    """Keeps of each row the tokens whose surprise is closest to the expected one, up to `mass` [R]; 1 keeps all."""
    logprobs = logits.log_softmax(-1)
    entropy = _entropy_terms(logprobs).sum(-1, keepdim=True)
    distance, order = (-logprobs - entropy).abs().sort(dim=-1, stable=True)
    before = (logprobs.gather(-1, order).exp().cumsum(-1) < mass[:, None]).sum(-1, keepdim=True)
    drop = distance > distance.gather(-1, before.clamp(max=logits.shape[1] - 1))
    drop[:, 0] = False
    drop = torch.empty_like(drop).scatter_(-1, order, drop)
    return logits.masked_fill(drop & (mass < 1)[:, None], float("-inf"))


def _likely(logits: Tensor, least: Tensor) -> Tensor:
    """Keeps tokens of at least this probability [R], and the likeliest."""
    drop = (logits.softmax(-1) < least[:, None]) & (logits < logits.amax(-1, keepdim=True))
    return logits.masked_fill(drop, float("-inf"))


def _entropy_terms(logprobs: Tensor) -> Tensor:
    return -(logprobs.exp() * logprobs).nan_to_num(nan=0.0)
