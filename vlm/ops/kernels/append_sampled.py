"""The end of a step that samples: parts of the vocabulary draw side by side, and a program a row looks whether what was
drawn passes the row's filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.append_and_check_stop import append_and_check_stop
from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.draw import drawn_of_all, drawn_of_top_k, noise, scaled
from vlm.ops.kernels.jit import jit
from vlm.ops.state.sampling import LEAST_TEMPERATURE

if TYPE_CHECKING:
    from vlm.ops.state.sampling import SamplingState
    from vlm.ops.state.sequences import SequenceState

# tokens of a part, and those that a row's program looks at together: the same for any number of rows, as sums are
PART, CHUNK = 2048, 8192
GROUP, MOST = 32, 128  # tokens of a group, and groups in which the k highest are looked for


@dependent
def _parts(
    scores_ptr, slots_ptr, temperatures_ptr, seeds_ptr, lengths_ptr, tokens_ptr, bests_ptr, sums_ptr, groups_ptr, V,
    stride, parts, DRAWS: tl.constexpr, PART: tl.constexpr, GROUP: tl.constexpr, LEAST: tl.constexpr,
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
    if DRAWS & (temperature > 0):
        temperature = tl.maximum(temperature, LEAST)
        x = scaled(x, temperature)
        group = tl.arange(0, PART // GROUP)
        out_groups = groups_ptr + (row * parts + part) * (PART // GROUP) + group
        tl.store(out_groups, tl.max(tl.reshape(x, [PART // GROUP, GROUP]), 1))
        base = tl.max(tl.where(x == -float("inf"), -3.0e38, x))
        drawn = x + noise(tl.load(seeds_ptr + slot), tl.load(lengths_ptr + slot), i)
        best, at = tl.max(drawn, 0, return_indices=True)
        tl.store(tokens_ptr + out + parts, part * PART + at)
        tl.store(bests_ptr + out + parts, best)
        tl.store(sums_ptr + out + parts, tl.sum(tl.exp(x - base)))


@jit
def _nucleus(p_ptr, decay_ptr, least_ptr, steps_ptr, slot):
    """Returns top_p as it is now: see vlm.ops.state.sampling.SamplingState."""
    p, decay, steps = tl.load(p_ptr + slot), tl.load(decay_ptr + slot), tl.load(steps_ptr + slot)
    shrunk = tl.maximum(p * tl.exp2(tl.log2(decay) * steps), tl.load(least_ptr + slot))
    return tl.where((steps == 0) | (decay == 1.0), p, shrunk)


@dependent
def _draw(
    scores_ptr, logits_ptr, slots_ptr, tokens_ptr, bests_ptr, sums_ptr, raw_bests_ptr, raw_sums_ptr,
    groups_ptr, chosen_ptr, temperatures_ptr, k_ptr, p_ptr, min_p_ptr, seeds_ptr, decay_ptr, least_p_ptr, steps_ptr,
    lengths_ptr, token_ptr, logprob_ptr, V, stride, logits_stride, parts, PADDED: tl.constexpr,
    PART: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, MOST: tl.constexpr, LEAST: tl.constexpr,
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
        is_cut = (k > 0) & (k < V)
        seed, position = tl.load(seeds_ptr + slot), tl.load(lengths_ptr + slot)
        top, few = tl.div_rn(highest, temperature), -1
        if is_cut:
            groups_ptr += row * parts * (PART // GROUP)
            few = drawn_of_top_k(
                scores_ptr, groups_ptr, chosen_ptr + row * MOST, likeliest, temperature, top, k, p, min_p, seed,
                position, V, parts * (PART // GROUP), GROUPS=PADDED * (PART // GROUP), MOST=MOST, GROUP=GROUP,
            )  # fmt: skip
        if few >= 0:
            token = few
        elif is_cut | (p < 1.0) | (min_p > 0):
            part_top = scaled(best, temperature)
            share = tl.load(sums_ptr + at + parts, mask=there, other=0.0)
            whole = tl.sum(tl.where(best > -float("inf"), share * tl.exp(part_top - top), 0.0))
            token = drawn_of_all(
                scores_ptr, token, likeliest, temperature, top, whole, k, p, min_p, seed, position, V, CHUNK
            )
    raw = tl.load(raw_bests_ptr + at, mask=there, other=-float("inf"))
    raw_top = tl.max(raw)
    raw_sum = tl.sum(tl.load(raw_sums_ptr + at, mask=there, other=0.0) * tl.exp(raw - raw_top))
    own = tl.load(logits_ptr + row * logits_stride + token).to(tl.float32)
    tl.store(token_ptr + row, token)
    tl.store(logprob_ptr + row, own - raw_top - tl.log(raw_sum))


@dependent
def _count_steps(slots_ptr, tokens_ptr, lengths_ptr, reset_ptr, steps_ptr, width):
    wait_for_inputs()
    slot = tl.load(slots_ptr + tl.program_id(0)).to(tl.int64)
    last = tl.load(tokens_ptr + slot * width + tl.load(lengths_ptr + slot) - 1)
    steps = tl.load(steps_ptr + slot) + 1
    tl.store(steps_ptr + slot, tl.where(last == tl.load(reset_ptr + slot), 0, steps))


def draw(
    state: SequenceState, settings: SamplingState, *, slots: Tensor, scores: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Draws by scores [R, V] a token for each of the `slots` [R] int32, but for filters by entropy -> tokens [R] int32,
    their log-probabilities under logits [R, V], [R] float32."""
    rows, vocab_size = scores.shape
    assert scores.stride(1) == logits.stride(1) == 1
    drawn = _of_parts(scores, state, settings, all_slots=slots, draws=True)
    plain = drawn if scores is logits else _of_parts(logits, state, settings, all_slots=slots, draws=False)
    parts = drawn.tokens.shape[2]
    token, chosen = _empty(scores, rows, dtype=torch.int32), _empty(scores, rows, MOST, dtype=torch.int32)
    logprob = _empty(scores, rows)
    _draw[(rows,)](
        scores, logits, slots, drawn.tokens, drawn.bests, drawn.sums, plain.bests, plain.sums, drawn.groups, chosen,
        settings.temperature, settings.top_k, settings.top_p, settings.min_p, settings.seeds, settings.top_p_decay,
        settings.top_p_min, settings.decay_steps, state.lengths, token, logprob,
        vocab_size, scores.stride(0), logits.stride(0), parts, PADDED=triton.next_power_of_2(parts),
        PART=PART, CHUNK=CHUNK, GROUP=GROUP, MOST=MOST, LEAST=LEAST_TEMPERATURE, num_warps=16,
    )  # fmt: skip
    return token, logprob


def append(
    state: SequenceState, slots: Tensor, settings: SamplingState, *, all_slots: Tensor, token: Tensor, logprob: Tensor
) -> None:
    """Appends what was drawn, and counts it: see vlm.ops.sampling.append_sampled."""
    append_and_check_stop(state, slots, token, logprob)
    _count_steps[(len(all_slots),)](
        all_slots, state.tokens, state.lengths, settings.top_p_reset_id, settings.decay_steps, state.tokens.shape[1],
        num_warps=1,
    )  # fmt: skip


class _Parts(NamedTuple):
    """Holds what parts of the vocabulary come to, as they are and with noise: [R, 2, parts]"""

    tokens: Tensor  # int32: the first of the best
    bests: Tensor  # float32: its score
    sums: Tensor  # float32: of all exponentials, relative to the best score without noise
    groups: Tensor  # [R, parts, PART // GROUP] float32: the best scaled score of each group


def _of_parts(
    scores: Tensor, state: SequenceState, settings: SamplingState, *, all_slots: Tensor, draws: bool
) -> _Parts:
    """Returns what the parts of scores [R, V] come to; those with noise are left open unless it `draws`."""
    rows, vocab_size = scores.shape
    count = triton.cdiv(vocab_size, PART)
    tokens, groups = _empty(scores, rows, 2, count, dtype=torch.int32), _empty(scores, rows, count, PART // GROUP)
    parts = _Parts(tokens, _empty(scores, rows, 2, count), _empty(scores, rows, 2, count), groups)
    _parts[(rows, count)](
        scores, all_slots, settings.temperature, settings.seeds, state.lengths, *parts, vocab_size, scores.stride(0),
        count, DRAWS=draws, PART=PART, GROUP=GROUP, LEAST=LEAST_TEMPERATURE, num_warps=4,
    )  # fmt: skip
    return parts


def _empty(like: Tensor, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(size, dtype=dtype, device=like.device)
