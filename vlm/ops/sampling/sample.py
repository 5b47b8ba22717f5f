"""Chooses the next token of each row and gives its log-probability.

Sampling is `argmax(logits + Gumbel noise)` (Gumbel-max), the noise a pure function of (seed, position, token id): the
same request draws the same tokens alone, in any batch and on any device.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vlm.ops.sampling import entropy_filters
from vlm.ops.state.sampling import LEAST_TEMPERATURE, SamplingState

_MASK = 0xFFFFFFFF


def greedy_reference(logits: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.float()
    best, token = logits.max(-1)
    return token, best - logits.logsumexp(-1)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Finds in logits [R, V] of the host the likeliest token [R] int64 (the first of equals), its log-probability [R]
    float32."""
    logits = logits.float()  # once for both
    token = likeliest(logits)
    return token, log_probability(logits, token)


def likeliest(logits: Tensor) -> Tensor:
    """Returns the likeliest token of each row of logits [R, V] of the host, the first of equals: [R] int64"""
    return torch.from_numpy(logits.detach().float().numpy().argmax(-1))  # torch's own takes ten times as long


def sample(logits: Tensor, how: SamplingState, positions: Tensor, *, by_entropy: bool = False) -> Tensor:
    """Draws a token for each row; rows of temperature 0 are greedy.

    logits [R, V]; `how` of the R rows; positions [R], the place of the token to draw; `by_entropy`: some rows have
    filters of vlm.ops.sampling.entropy_filters -> token [R] int64
    """
    if logits.is_cuda:  # a graph, which cannot ask what rows draw
        return torch.where(how.temperature > 0, _drawn(logits, how, positions, by_entropy), logits.argmax(-1))
    token = likeliest(logits)
    if len(rows := how.temperature.nonzero()[:, 0]):
        token[rows] = _drawn(logits[rows], how.rows(rows), positions[rows], by_entropy)
    return token


def _drawn(logits: Tensor, how: SamplingState, positions: Tensor, by_entropy: bool) -> Tensor:
    """Draws a token for each row."""
    logits = logits.float()
    if by_entropy:
        scaled = entropy_filters.top_h(_scaled(logits, how.temperature), how.top_h)
        scores = filtered(scaled, torch.ones_like(how.temperature), how.top_k, how.nucleus, how.min_p)
        scores = entropy_filters.last(scores, how.typical_p, how.epsilon_cutoff, how.eta_cutoff)
    else:
        scores = filtered(logits, how.temperature, how.top_k, how.nucleus, how.min_p)
    return (scores + gumbel(how.seeds, positions, logits.shape[-1])).argmax(-1)


def log_probability(logits: Tensor, token: Tensor) -> Tensor:
    """Returns the log-probability of each row's token [R] under its logits [R, V]: [R] float32."""
    logits = logits.float()
    return logits.gather(-1, token[:, None])[:, 0] - logits.logsumexp(-1)


def filtered(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Filters logits [R, V] by temperature, top-k, top-p and min-p, the dropped ones -inf; each row keeps at least one.

    As Hugging Face: top-k keeps ties with the k-th, top-p keeps the smallest set whose mass reaches p, min-p those of
    at least p times the likeliest's probability.
    """
    scaled = _scaled(logits, temperature)
    if not logits.is_cuda and not ((top_k > 0) | (top_p < 1.0) | (min_p > 0)).any():
        return scaled
    ordered = _descending(scaled)
    k = torch.where(top_k > 0, top_k.clamp(max=logits.shape[-1]), logits.shape[-1]).long()
    ordered = ordered.masked_fill(ordered < ordered.gather(-1, k[:, None] - 1), float("-inf"))
    mass = ordered.softmax(-1)
    before = mass.cumsum(-1) - mass  # mass of the likelier ones
    # where all may be drawn, what is added up may round to 1 ahead of the last ones
    beyond = (before >= top_p[:, None]) & (top_p[:, None] < 1.0)
    drop = beyond | (mass < min_p[:, None] * mass[:, :1]) | (ordered == float("-inf"))
    count = (~drop).sum(-1, keepdim=True).clamp(min=1)
    last = ordered.gather(-1, count - 1)
    # of those that equal the last one, the first
    equal, left = scaled == last, count - (ordered > last).sum(-1, keepdim=True)
    return scaled.masked_fill(~((scaled > last) | (equal & (equal.cumsum(-1) <= left))), float("-inf"))


def _descending(values: Tensor) -> Tensor:
    """Sorts each row, the highest first."""
    if values.is_cuda:
        return values.sort(descending=True).values
    # torch's own sort of the host takes forty times as long
    return torch.from_numpy(np.sort(values.numpy(), axis=-1)).flip(-1)


def _scaled(logits: Tensor, temperature: Tensor) -> Tensor:
    return logits / torch.where(temperature > 0, temperature.clamp(min=LEAST_TEMPERATURE), 1.0)[:, None]


def gumbel(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Returns standard Gumbel noise [R, V], a hash of (seed, position, token id)."""
    row = _mix(seeds & _MASK) ^ _mix((seeds >> 32) + 0x51ED270B)
    row = _mix(_mix(row) ^ (positions.long() + 0x2545F491))
    ids = torch.arange(vocab_size, device=seeds.device) * 0x9E3779B1
    bits = _mix(row[:, None] ^ (ids & _MASK))
    # 23 bits: (n + 0.5) / 2^23 is exact in float32 and never 0 or 1
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def _mix(x: Tensor) -> Tensor:
    """Applies MurmurHash3's 32-bit finalizer, in int64 arithmetic."""
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)
