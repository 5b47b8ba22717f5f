"""Chooses the next token of each row and gives its log-probability.

Sampling is `argmax(logits + Gumbel noise)` (Gumbel-max), the noise a pure function of (seed, position, token id): the
same request draws the same tokens alone, in any batch and on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def greedy_reference(logits: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.float()
    best, token = logits.max(-1)
    return token, best - logits.logsumexp(-1)


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [R, V] -> the likeliest token [R] int64 (the first of equals) and its log-probability [R] float32"""
    if logits.is_cuda:
        from vlm.ops.kernels.sample import greedy as kernel

        return kernel(logits)
    return greedy_reference(logits)


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """One draw a row; rows of temperature 0 are greedy.

    logits [R, V]; temperature, top_p, min_p [R] float32; top_k [R] (0: off); seeds [R] int64; positions [R], the place
    of the token to draw -> token [R] int64
    """
    logits = logits.float()
    kept = filtered(logits, temperature, top_k, top_p, min_p)
    drawn = (kept + gumbel(seeds, positions, logits.shape[-1])).argmax(-1)
    return torch.where(temperature > 0, drawn, logits.argmax(-1))


def log_probability(logits: Tensor, token: Tensor) -> Tensor:
    """Of each row's token [R] under its logits [R, V] -> [R] float32"""
    logits = logits.float()
    return logits.gather(-1, token[:, None])[:, 0] - logits.logsumexp(-1)


def filtered(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Logits [R, V] after temperature, top-k, top-p and min-p, the dropped ones -inf; each row keeps at least one.

    As Hugging Face: top-k keeps ties with the k-th, top-p keeps the smallest set whose mass reaches p, min-p those of
    at least p times the likeliest's probability.
    """
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    ordered, order = scaled.sort(descending=True, stable=True)
    k = torch.where(top_k > 0, top_k.clamp(max=logits.shape[-1]), logits.shape[-1]).long()
    ordered = ordered.masked_fill(ordered < ordered.gather(-1, k[:, None] - 1), float("-inf"))
    mass = ordered.softmax(-1)
    before = mass.cumsum(-1) - mass  # mass of the likelier ones
    dropped = (before >= top_p[:, None]) | (mass < min_p[:, None] * mass[:, :1])
    dropped[:, 0] = False
    return torch.empty_like(scaled).scatter_(-1, order, ordered.masked_fill(dropped, float("-inf")))


def gumbel(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [R, V], a hash of (seed, position, token id)."""
    row = _mix(seeds & _MASK) ^ _mix((seeds >> 32) + 0x51ED270B)
    row = _mix(_mix(row) ^ (positions.long() + 0x2545F491))
    ids = torch.arange(vocab_size, device=seeds.device) * 0x9E3779B1
    bits = _mix(row[:, None] ^ (ids & _MASK))
    # 23 bits: (n + 0.5) / 2^23 is exact in float32 and never 0 or 1
    uniform = ((bits >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def _mix(x: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finalizer, in int64 arithmetic."""
    x = x & _MASK
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _MASK
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _MASK
    return x ^ (x >> 16)
