"""Penalties in two passes: each token of a row's history, and each rule, marks a place in the vocabulary, and each
place looks at its mark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.topk_logprobs import topk_logprobs
from vlm.ops.token_rules import BAN, SUPPRESS

if TYPE_CHECKING:
    from vlm.ops.penalty_state import PenaltyState
    from vlm.ops.sequence_state import SequenceState
    from vlm.ops.token_rules import TokenRules

# tokens of a history, of the vocabulary, and before a rule's, that a program looks at together
TILE, PART, PREFIX_TILE = 256, 2048, 16
# a mark: how often the output has the token, below that whether the row has it at all, and whether it must not come
OUTPUT, PRESENT, FORBIDDEN = (tl.constexpr(bits) for bits in ((1 << 29) - 1, 1 << 29, 1 << 30))


@dependent
def _mark(
    marks_ptr, slots_ptr, tokens_ptr, lengths_ptr, prompts_ptr, stops_ptr, repetition_ptr, presence_ptr,
    frequency_ptr, shortest_ptr, ngrams_ptr, V, width, STOPS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row, begin = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE
    slot = tl.load(slots_ptr + row).to(tl.int64)
    length = tl.load(lengths_ptr + slot)
    marks, history = marks_ptr + row * V, tokens_ptr + slot * width
    if (begin == 0) & (length < tl.load(shortest_ptr + slot)):
        stops = tl.load(stops_ptr + slot * STOPS + tl.arange(0, STOPS))
        tl.atomic_or(marks + stops, FORBIDDEN, mask=(stops >= 0) & (stops < V))
    if begin < length:
        t = begin + tl.arange(0, TILE)
        token = tl.load(history + t, mask=t < length, other=-1)
        there = (token >= 0) & (token < V)  # rows of a prompt table have no logits
        if tl.load(repetition_ptr + slot) != 1.0:
            tl.atomic_or(marks + token, PRESENT, mask=there)
        if (tl.load(presence_ptr + slot) != 0.0) | (tl.load(frequency_ptr + slot) != 0.0):
            tl.atomic_add(marks + token, 1, mask=there & (t >= tl.load(prompts_ptr + slot)))
        n = tl.load(ngrams_ptr + slot)
        if (n > 0) & (n <= length):
            repeats = there & (t >= n - 1)
            for back in range(1, n):
                earlier = tl.load(history + t - back, mask=repeats, other=-1)
                repeats = repeats & (earlier == tl.load(history + length - back))
            tl.atomic_or(marks + token, FORBIDDEN, mask=repeats)


@dependent
def _ban(
    marks_ptr, slots_ptr, tokens_ptr, lengths_ptr, rule_slots_ptr, rule_tokens_ptr, kinds_ptr, places_ptr,
    first_ptr, count_ptr, backs_ptr, prefix_tokens_ptr, R, V, width, ROWS: tl.constexpr, TILE: tl.constexpr,
    BAN: tl.constexpr, SUPPRESS: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    rule = tl.program_id(0)
    token, kind = tl.load(rule_tokens_ptr + rule), tl.load(kinds_ptr + rule)
    if (token >= 0) & (token < V) & ((kind == BAN) | (kind == SUPPRESS)):
        slot, place, r = tl.load(rule_slots_ptr + rule), tl.load(places_ptr + rule), tl.arange(0, ROWS)
        here = tl.load(slots_ptr + r, mask=r < R, other=-1) == slot
        row = tl.sum(tl.where(here, r + 1, 0)) - 1  # pyright: ignore[reportOperatorIssue]
        length = tl.load(lengths_ptr + slot)
        missing = tl.where((row < 0) | ((place >= 0) & (place != length)), 1, 0)
        first, count = tl.load(first_ptr + rule), tl.load(count_ptr + rule)
        for begin in range(0, tl.where(missing == 0, count, 0), TILE):
            i = first + begin + tl.arange(0, TILE)
            own = i < first + count
            at = length - tl.load(backs_ptr + i, mask=own, other=0)
            stands = tl.load(tokens_ptr + slot.to(tl.int64) * width + at, mask=own & (at >= 0), other=-1)
            missing += tl.sum((own & (stands != tl.load(prefix_tokens_ptr + i, mask=own, other=-1))).to(tl.int32))
        if missing == 0:
            tl.atomic_or(marks_ptr + tl.cast(row, tl.int64) * V + token, FORBIDDEN)


@dependent
def _apply(
    logits_ptr, norm_ptr, marks_ptr, scores_ptr, slots_ptr, repetition_ptr, presence_ptr, frequency_ptr, V, stride,
    NORMALIZES: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * PART + tl.arange(0, PART)
    slot = tl.load(slots_ptr + row)
    repetition = tl.load(repetition_ptr + slot)
    x = tl.load(logits_ptr + row * stride + i, mask=i < V, other=0.0).to(tl.float32)
    if NORMALIZES:
        x -= tl.load(norm_ptr + row)
    mark = tl.load(marks_ptr + row * V + i, mask=i < V, other=0)
    penalized = tl.where(x > 0, tl.div_rn(x, tl.broadcast_to(repetition, x.shape)), x * repetition)
    x = tl.where((mark & PRESENT) != 0, penalized, x)
    count = (mark & OUTPUT).to(tl.float32)
    x = x - tl.where(count > 0, tl.load(presence_ptr + slot), 0.0)
    x = x - tl.load(frequency_ptr + slot) * count
    tl.store(scores_ptr + row * V + i, tl.where((mark & FORBIDDEN) != 0, -float("inf"), x), mask=i < V)


def penalize(
    logits: Tensor,
    state: SequenceState,
    penalties: PenaltyState,
    *,
    slots: Tensor,
    bans: TokenRules | None = None,
    log_probabilities: bool = False,
) -> Tensor:
    rows, vocab_size = logits.shape
    normalizer = topk_logprobs(logits, 0)[2] if log_probabilities else logits  # logits: not read
    assert logits.stride(1) == 1
    marks = torch.zeros((rows, vocab_size), dtype=torch.int32, device=logits.device)
    scores = torch.empty((rows, vocab_size), dtype=torch.float32, device=logits.device)
    width = state.tokens.shape[1]
    _mark[(rows, triton.cdiv(width, TILE))](
        marks, slots, state.tokens, state.lengths, state.prompt_lengths, state.stop_ids, penalties.repetition,
        penalties.presence, penalties.frequency, penalties.min_lengths, penalties.ngrams, vocab_size, width,
        STOPS=state.stop_ids.shape[1], TILE=TILE, num_warps=4,
    )  # fmt: skip
    if bans is not None:
        _ban[(len(bans.tokens),)](
            marks, slots, state.tokens, state.lengths, bans.slots, bans.tokens, bans.kinds, bans.places,
            bans.first_prefixes, bans.num_prefixes, bans.prefix_backs, bans.prefix_tokens, rows, vocab_size, width,
            ROWS=triton.next_power_of_2(rows), TILE=PREFIX_TILE, BAN=BAN, SUPPRESS=SUPPRESS, num_warps=1,
        )  # fmt: skip
    _apply[(rows, triton.cdiv(vocab_size, PART))](
        logits, normalizer, marks, scores, slots, penalties.repetition, penalties.presence, penalties.frequency,
        vocab_size, logits.stride(0), NORMALIZES=log_probabilities, PART=PART, num_warps=4,
    )  # fmt: skip
    return scores
