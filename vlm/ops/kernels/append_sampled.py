"""The end of a step that samples: parts of the vocabulary draw side by side, and a program a row looks whether what was
drawn passes the row's filters.

What top-k, top-p and min-p keep are the likeliest tokens down to some last one. So who draws a token beyond it draws
again among those that are likelier than it, with the same noise: what passes in the end is the largest sum of score and
noise among what is kept. Nothing is sorted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.append_and_check_stop import append_and_check_stop
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.jit import jit
from vlm.ops.sample import LEAST_TEMPERATURE

if TYPE_CHECKING:
    from vlm.ops.sample import SamplingState
    from vlm.ops.sequence_state import SequenceState

# tokens of a part, and those that a row's program looks at together: the same for any number of rows, as sums are
PART, CHUNK = 2048, 4096
DIGITS = tl.constexpr(512)  # values of 8 bits, and one for who is out


@jit
def _mix(x):
    """Applies MurmurHash3's finalizer to 32 bits."""
    x = (x ^ (x >> 16)) * 0x85EBCA6B
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    return x ^ (x >> 16)


@jit
def _noise(seed, position, i):
    """Returns standard Gumbel noise: see vlm.ops.sample.gumbel."""
    row = _mix(seed.to(tl.uint32)) ^ _mix((seed >> 32).to(tl.uint32) + 0x51ED270B)
    row = _mix(_mix(row) ^ (position.to(tl.uint32) + 0x2545F491))
    bits = _mix(row ^ (i.to(tl.uint32) * 0x9E3779B1))
    uniform = ((bits >> 9).to(tl.float32) + 0.5) * (2.0**-23)
    # near 1, where the noise is large, a fast logarithm has no digit left: 2 atanh(s) is -log(1 - (1 - u))
    s = (1.0 - uniform) / (1.0 + uniform)
    q = s * s
    series = 1.0 + q * (1 / 3 + q * (1 / 5 + q * (1 / 7 + q * (1 / 9 + q * (1 / 11 + q * (1 / 13))))))
    return -tl.log(tl.where(uniform > 0.5, 2.0 * s * series, -tl.log(uniform)))


@jit
def _scaled(x, temperature):
    return tl.div_rn(x, tl.broadcast_to(temperature, x.shape))


@dependent
def _parts(
    scores_ptr, slots_ptr, temperatures_ptr, seeds_ptr, lengths_ptr, tokens_ptr, bests_ptr, sums_ptr, V, stride, parts,
    PART: tl.constexpr, LEAST: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = part * PART + tl.arange(0, PART)
    x = tl.load(scores_ptr + row * stride + i, mask=i < V, other=-float("inf")).to(tl.float32)
    x = tl.where(x == x, x, -float("inf"))  # NaN is never chosen
    best, at = tl.max(x, 0, return_indices=True)  # the first of equals
    out = row * 2 * parts + part
    tl.store(tokens_ptr + out, part * PART + at)
    tl.store(bests_ptr + out, best)
    base = tl.where(best == -float("inf"), 0.0, best)  # a part of nothing but -inf adds nothing
    tl.store(sums_ptr + out, tl.sum(tl.exp(x - base)))

    slot = tl.load(slots_ptr + row).to(tl.int64)
    temperature = tl.load(temperatures_ptr + slot)
    if temperature > 0:
        temperature = tl.maximum(temperature, LEAST)
        x = _scaled(x, temperature)
        base = tl.max(tl.where(x == -float("inf"), -3.0e38, x))
        drawn = x + _noise(tl.load(seeds_ptr + slot), tl.load(lengths_ptr + slot), i)
        best, at = tl.max(drawn, 0, return_indices=True)
        tl.store(tokens_ptr + out + parts, part * PART + at)
        tl.store(bests_ptr + out + parts, best)
        tl.store(sums_ptr + out + parts, tl.sum(tl.exp(x - base)))


@jit
def _floor(scores_ptr, temperature, k, V, CHUNK: tl.constexpr):
    """Returns the k-th highest scaled score, 8 bits at a time."""
    digit = tl.arange(0, DIGITS)
    prefix, left = 0, k
    for shift in tl.static_range(24, -1, -8):  # pyright: ignore[reportGeneralTypeIssues]
        count = tl.zeros([DIGITS], tl.int32)
        for begin in range(0, V, CHUNK):
            i = begin + tl.arange(0, CHUNK)
            x = _scaled(tl.load(scores_ptr + i, mask=i < V, other=-float("inf")).to(tl.float32), temperature)
            bits = x.to(tl.int32, bitcast=True)
            # in the order of the numbers, without a sign
            key = (bits ^ tl.where(bits < 0, -1, -2147483648)).to(tl.uint32, bitcast=True).to(tl.int64)
            same = (i < V) & ((key >> (shift + 8)) == prefix)
            count += tl.histogram(tl.where(same, (key >> shift) & 255, 256).to(tl.int32), DIGITS)
        count = tl.where(digit < 256, count, 0)
        above = tl.sum(count) - tl.cumsum(count)
        chosen = tl.max(tl.where((digit < 256) & (above + count >= left), digit, 0))
        left -= tl.sum(tl.where(digit == chosen, above, 0))
        prefix = prefix * 256 + chosen
    bits = prefix ^ tl.where(prefix < 0, -2147483648, -1)
    return bits.to(tl.float32, bitcast=True)


@jit
def _is_above(x, i, value, token):
    """Says what comes before a token: what is likelier, and of equals the first."""
    return (x > value) | ((x == value) & (i < token))


@jit
def _mass(scores_ptr, temperature, top, value, token, V, CHUNK: tl.constexpr):
    """Sums, relative to the likeliest, the probabilities of what comes before a token."""
    mass = tl.zeros([CHUNK], tl.float32)
    for begin in range(0, V, CHUNK):
        i = begin + tl.arange(0, CHUNK)
        x = _scaled(tl.load(scores_ptr + i, mask=i < V, other=-float("inf")).to(tl.float32), temperature)
        mass += tl.where(_is_above(x, i, value, token), tl.exp(x - top), 0.0)
    return tl.sum(mass)


@jit
def _redrawn(scores_ptr, temperature, seed, position, value, token, V, CHUNK: tl.constexpr):
    """Draws among what comes before a token; -1 where nothing does."""
    best = tl.full([CHUNK], -float("inf"), tl.float32)
    at = tl.zeros([CHUNK], tl.int32) - 1
    for begin in range(0, V, CHUNK):
        i = begin + tl.arange(0, CHUNK)
        x = _scaled(tl.load(scores_ptr + i, mask=i < V, other=-float("inf")).to(tl.float32), temperature)
        drawn = tl.where(_is_above(x, i, value, token), x + _noise(seed, position, i), -float("inf"))
        at, best = tl.where(drawn > best, i, at), tl.maximum(drawn, best)
    return tl.min(tl.where(best == tl.max(best), at, 2147483647))


@jit
def _nucleus(p_ptr, decay_ptr, least_ptr, steps_ptr, slot):
    """Returns top_p as it is now: see vlm.ops.sample.SamplingState."""
    p, decay, steps = tl.load(p_ptr + slot), tl.load(decay_ptr + slot), tl.load(steps_ptr + slot)
    shrunk = tl.maximum(p * tl.exp2(tl.log2(decay) * steps), tl.load(least_ptr + slot))
    return tl.where((steps == 0) | (decay == 1.0), p, shrunk)


@dependent
def _draw(
    scores_ptr, logits_ptr, slots_ptr, tokens_ptr, bests_ptr, sums_ptr, raw_bests_ptr, raw_sums_ptr,
    temperatures_ptr, k_ptr, p_ptr, min_p_ptr, seeds_ptr, decay_ptr, least_p_ptr, steps_ptr, lengths_ptr,
    token_ptr, logprob_ptr, V, stride, logits_stride, parts, raw_stride, PADDED: tl.constexpr, CHUNK: tl.constexpr,
    LEAST: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    i = tl.arange(0, PADDED)
    at, there = row * 2 * parts + i, i < parts
    best = tl.load(bests_ptr + at, mask=there, other=-float("inf"))
    highest = tl.max(best)
    likeliest = tl.min(tl.where(there & (best == highest), tl.load(tokens_ptr + at, mask=there, other=0), 2147483647))
    token = likeliest
    temperature = tl.load(temperatures_ptr + slot)
    if temperature > 0:
        temperature = tl.maximum(temperature, LEAST)
        drawn = tl.load(bests_ptr + at + parts, mask=there, other=-float("inf"))
        drawn_token = tl.load(tokens_ptr + at + parts, mask=there, other=0)
        token = tl.min(tl.where(there & (drawn == tl.max(drawn)), drawn_token, 2147483647))
        scores_ptr += row * stride
        k, min_p = tl.load(k_ptr + slot), tl.load(min_p_ptr + slot)
        p = _nucleus(p_ptr, decay_ptr, least_p_ptr, steps_ptr, slot)
        if ((k > 0) & (k < V)) | (p < 1.0) | (min_p > 0):
            seed, position = tl.load(seeds_ptr + slot), tl.load(lengths_ptr + slot)
            top, floor = tl.div_rn(highest, temperature), -float("inf")
            part_top = _scaled(best, temperature)
            mass = tl.load(sums_ptr + at + parts, mask=there, other=0.0)
            whole = tl.sum(tl.where(best > -float("inf"), mass * tl.exp(part_top - top), 0.0))
            if (k > 0) & (k < V):
                floor = _floor(scores_ptr, temperature, k, V, CHUNK)
                if p < 1.0:
                    whole = _mass(scores_ptr, temperature, top, floor, V, V, CHUNK)
            passes = token == likeliest
            while not passes:
                value = tl.div_rn(tl.load(scores_ptr + token).to(tl.float32), temperature)
                passes = (value >= floor) & (tl.exp(value - top) >= min_p)
                if passes & (p < 1.0):
                    passes = _mass(scores_ptr, temperature, top, value, token, V, CHUNK) < p * whole
                if not passes:
                    below = value < floor
                    value, token = tl.where(below, floor, value), tl.where(below, V, token)
                    token = _redrawn(scores_ptr, temperature, seed, position, value, token, V, CHUNK)
                    passes = (token == likeliest) | (token < 0)
                    token = tl.where(token < 0, likeliest, token)
    raw = tl.load(raw_bests_ptr + row * raw_stride + i, mask=there, other=-float("inf"))
    raw_top = tl.max(raw)
    raw_sum = tl.sum(tl.load(raw_sums_ptr + row * raw_stride + i, mask=there, other=0.0) * tl.exp(raw - raw_top))
    own = tl.load(logits_ptr + row * logits_stride + token).to(tl.float32)
    tl.store(token_ptr + row, token)
    tl.store(logprob_ptr + row, own - raw_top - tl.log(raw_sum))


@dependent
def _count(slots_ptr, tokens_ptr, lengths_ptr, reset_ptr, steps_ptr, width):
    wait_for_inputs()
    slot = tl.load(slots_ptr + tl.program_id(0)).to(tl.int64)
    last = tl.load(tokens_ptr + slot * width + tl.load(lengths_ptr + slot) - 1)
    steps = tl.load(steps_ptr + slot) + 1
    tl.store(steps_ptr + slot, tl.where(last == tl.load(reset_ptr + slot), 0, steps))


def append_sampled(
    state: SequenceState, slots: Tensor, settings: SamplingState, own: Tensor, *, scores: Tensor, logits: Tensor
) -> None:
    rows, vocab_size = scores.shape
    assert scores.stride(1) == logits.stride(1) == 1
    found = _drawn_parts(state, settings, own, scores)
    raw = found if scores is logits else _drawn_parts(state, settings, own, logits)
    token = torch.empty(rows, dtype=torch.int32, device=logits.device)
    logprob = torch.empty(rows, dtype=torch.float32, device=logits.device)
    parts = found[0].shape[2]
    _draw[(rows,)](
        scores, logits, own, *found, *raw[1:], settings.temperature, settings.top_k, settings.top_p, settings.min_p,
        settings.seeds, settings.top_p_decay, settings.top_p_min, settings.decay_steps, state.lengths, token, logprob,
        vocab_size, scores.stride(0), logits.stride(0), parts, 2 * parts, PADDED=triton.next_power_of_2(parts),
        CHUNK=CHUNK, LEAST=LEAST_TEMPERATURE, num_warps=8,
    )  # fmt: skip
    append_and_check_stop(state, slots, token, logprob)
    _count[(rows,)](
        own, state.tokens, state.lengths, settings.top_p_reset_id, settings.decay_steps, state.tokens.shape[1],
        num_warps=1,
    )  # fmt: skip


def _drawn_parts(
    state: SequenceState, settings: SamplingState, own: Tensor, scores: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns of each part, as they are and with noise: the first of the best tokens, its score, and the sum of all
    exponentials relative to it, or to the best score without noise; [R, 2, parts] each."""
    rows, vocab_size = scores.shape
    parts = triton.cdiv(vocab_size, PART)
    tokens = torch.empty((rows, 2, parts), dtype=torch.int32, device=scores.device)
    bests, sums = torch.empty((2, rows, 2, parts), dtype=torch.float32, device=scores.device)
    _parts[(rows, parts)](
        scores, own, settings.temperature, settings.seeds, state.lengths, tokens, bests, sums, vocab_size,
        scores.stride(0), parts, PART=PART, LEAST=LEAST_TEMPERATURE, num_warps=4,
    )  # fmt: skip
    return tokens, bests, sums
