"""Penalties and rules in two passes: each token of a row's history, and each rule, marks a place in the vocabulary, and
each place looks at its mark."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, let_next_start, wait_for_inputs
from vlm.ops.kernels.jit import jit
from vlm.ops.kernels.topk_logprobs import topk_logprobs
from vlm.ops.state.token_rules import ALLOW, BAN, BIAS, FORCE, SEEN, SUPPRESS, acting

if TYPE_CHECKING:
    from vlm.ops.state.beams import Groups
    from vlm.ops.state.penalties import PenaltyState
    from vlm.ops.state.sequences import SequenceState
    from vlm.ops.state.token_rules import TokenRules

# tokens of a history, of the vocabulary, and before a rule's, that a program looks at together
TILE, PART, PREFIX_TILE = 256, 2048, 16
# a mark: how often the output has the token, above that whether the row has it at all, and a bit for each kind of rule
OUTPUT, PRESENT, RULE = tl.constexpr((1 << 23) - 1), tl.constexpr(1 << 23), tl.constexpr(1 << 24)
BIASED, READ, FORBIDDEN, FORCED, NEVER, ALLOWED = (
    tl.constexpr(RULE.value << kind) for kind in (BIAS, SEEN, BAN, FORCE, SUPPRESS, ALLOW)
)
LEFT = tl.constexpr(1)  # of a row: something else than -inf


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
def _rule(
    marks_ptr, rows_ptr, biases_ptr, slots_ptr, tokens_ptr, lengths_ptr, rule_slots_ptr, rule_tokens_ptr, kinds_ptr,
    places_ptr, values_ptr, first_ptr, count_ptr, backs_ptr, prefix_tokens_ptr, acting, R, V, width,
    ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    rule = tl.program_id(0)
    token, kind = tl.load(rule_tokens_ptr + rule), tl.load(kinds_ptr + rule)
    bit = RULE << tl.maximum(kind, 0)
    if (token >= 0) & (token < V) & ((acting & bit) != 0):
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
            at = tl.cast(row, tl.int64) * V + token
            if bit == BIASED:
                tl.atomic_add(biases_ptr + at, tl.load(values_ptr + rule))
            else:
                tl.atomic_or(marks_ptr + at, bit)
                if (bit == ALLOWED) | (bit == FORCED):
                    tl.atomic_or(rows_ptr + row, bit)


@jit
def _weighed(x, mark, repetition):
    """Weighs what the row has: likelier scores become smaller, others larger."""
    penalized = tl.where(x > 0, tl.div_rn(x, tl.broadcast_to(repetition, x.shape)), x * repetition)
    return tl.where((mark & PRESENT) != 0, penalized, x)


@dependent
def _apply(
    logits_ptr, norm_ptr, marks_ptr, rows_ptr, biases_ptr, scores_ptr, slots_ptr, seen_ptr, repetition_ptr,
    presence_ptr, frequency_ptr, V, stride, acting, NORMALIZES: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    let_next_start()
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * PART + tl.arange(0, PART)
    slot = tl.load(slots_ptr + row)
    x = tl.load(logits_ptr + row * stride + i, mask=i < V, other=0.0).to(tl.float32)
    if NORMALIZES:
        x -= tl.load(norm_ptr + row)
    mark = tl.load(marks_ptr + row * V + i, mask=i < V, other=0)
    if (acting & BIASED) != 0:
        x += tl.load(biases_ptr + row * V + i, mask=i < V, other=0.0)
    if (acting & READ) != 0:
        seen = tl.broadcast_to(tl.load(seen_ptr + slot), x.shape)
        x = tl.where((mark & READ) != 0, tl.where(x < 0, tl.div_rn(x, seen), x * seen), x)
    x = _weighed(x, mark, tl.load(repetition_ptr + slot))
    count = (mark & OUTPUT).to(tl.float32)
    x = x - tl.where(count > 0, tl.load(presence_ptr + slot), 0.0)
    x = x - tl.load(frequency_ptr + slot) * count
    x = tl.where((mark & FORBIDDEN) != 0, -float("inf"), x)
    if (acting & (ALLOWED | FORCED)) != 0:
        kinds = tl.load(rows_ptr + row)
        x = tl.where(((kinds & ALLOWED) != 0) & ((mark & ALLOWED) == 0), -float("inf"), x)
        if tl.max(((i < V) & (x != -float("inf"))).to(tl.int32)) > 0:  # pyright: ignore[reportOperatorIssue]
            tl.atomic_or(rows_ptr + row, LEFT)
        x = tl.where((kinds & FORCED) != 0, tl.where((mark & FORCED) != 0, 0.0, -float("inf")), x)
    tl.store(scores_ptr + row * V + i, tl.where((mark & NEVER) != 0, -float("inf"), x), mask=i < V)


@dependent
def _free(scores_ptr, marks_ptr, rows_ptr, stuck_ptr, V, PART: tl.constexpr):
    let_next_start()
    wait_for_inputs()
    row = tl.program_id(0).to(tl.int64)
    if (tl.load(stuck_ptr + row) != 0) & ((tl.load(rows_ptr + row) & FORCED) == 0):
        i = tl.program_id(1) * PART + tl.arange(0, PART)
        mark = tl.load(marks_ptr + row * V + i, mask=i < V, other=0)
        tl.store(scores_ptr + row * V + i, 0.0, mask=(i < V) & ((mark & (ALLOWED | NEVER)) == ALLOWED))


def penalize(
    logits: Tensor,
    state: SequenceState,
    penalties: PenaltyState,
    *,
    slots: Tensor,
    rules: TokenRules | None = None,
    kinds: Collection[int] = (),
    groups: Groups | None = None,
) -> Tensor:
    rows, vocab_size = logits.shape
    normalizer = logits if groups is None else topk_logprobs(logits, 0)[2]  # logits: not read
    assert logits.stride(1) == 1
    kinds = acting(kinds) if rules is not None else set()
    size = rows * vocab_size
    zeros = torch.zeros(size + rows + size * (BIAS in kinds), dtype=torch.int32, device=logits.device)
    marks, of_rows, biases = zeros[:size], zeros[size : size + rows], zeros[size + rows :].view(torch.float32)
    bits = sum(RULE.value << kind for kind in kinds)
    scores = torch.empty((rows, vocab_size), dtype=torch.float32, device=logits.device)
    width = state.tokens.shape[1]
    _mark[(rows, triton.cdiv(width, TILE))](
        marks, slots, state.tokens, state.lengths, state.prompt_lengths, state.stop_ids, penalties.repetition,
        penalties.presence, penalties.frequency, penalties.min_lengths, penalties.ngrams, vocab_size, width,
        STOPS=state.stop_ids.shape[1], TILE=TILE, num_warps=4,
    )  # fmt: skip
    if rules is not None and kinds:
        _rule[(len(rules.tokens),)](
            marks, of_rows, biases, slots, state.tokens, state.lengths, rules.slots, rules.tokens, rules.kinds,
            rules.places, rules.values, rules.first_prefixes, rules.num_prefixes, rules.prefix_backs,
            rules.prefix_tokens, bits, rows, vocab_size, width,
            ROWS=triton.next_power_of_2(rows), TILE=PREFIX_TILE, num_warps=1,
        )  # fmt: skip
    parts = triton.cdiv(vocab_size, PART)
    _apply[(rows, parts)](
        logits, normalizer, marks, of_rows, biases, scores, slots, penalties.input_repetition, penalties.repetition,
        penalties.presence, penalties.frequency, vocab_size, logits.stride(0), bits,
        NORMALIZES=groups is not None, PART=PART, num_warps=4,
    )  # fmt: skip
    if ALLOW in kinds:
        stuck = (of_rows & LEFT.value) == 0
        stuck = stuck if groups is None else groups.all_of(stuck)
        _free[(rows, parts)](scores, marks, of_rows, stuck, vocab_size, PART=PART, num_warps=4)
    return scores
