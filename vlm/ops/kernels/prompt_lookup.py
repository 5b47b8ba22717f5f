"""A program a row: it goes through the row's texts once, and keeps the best place of each column of its tiles."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.jit import jit
from vlm.ops.state.drafts import MAX_NGRAM, DraftState
from vlm.ops.state.sequences import SequenceState
from vlm.requests.finish import RUNNING

TILE = 512  # places


@jit
def _at(place, tokens_ptr, length, source_ptr, source_length, SOURCE, VOCAB):
    """Returns the tokens at places of a source, a gap and a sequence's tokens; -1 for what is no token."""
    own = place - (SOURCE + 1)
    is_read, is_own = (place >= 0) & (place < source_length), (own >= 0) & (own < length)
    token = tl.where(
        is_own,
        tl.load(tokens_ptr + own, mask=is_own, other=-1),
        tl.load(source_ptr + place, mask=is_read, other=-1),
    )
    return tl.where(token < VOCAB, token, -1)


@jit
def _propose(
    slots_ptr, tokens_ptr, lengths_ptr, max_lengths_ptr, finish_ptr, sources_ptr, source_lengths_ptr, limits_ptr,
    drafted_ptr, out_ptr, R, TOKENS, SOURCE, VOCAB, COUNT,
    RUNNING: tl.constexpr, NGRAM: tl.constexpr, TILE: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    length, source_length = tl.load(lengths_ptr + slot), tl.load(source_lengths_ptr + slot)
    tokens_ptr += slot * TOKENS
    source_ptr = sources_ptr + slot * SOURCE
    last, width = SOURCE + 1 + length, SOURCE + 1 + TOKENS
    best = tl.zeros([TILE], tl.int32)  # of each column width · matching tokens + place; 0: nothing matches
    for start in range(0, last, TILE):
        place = start + tl.arange(0, TILE)
        same = _at(place, tokens_ptr, length, source_ptr, source_length, SOURCE, VOCAB) != -1
        matching = tl.zeros([TILE], tl.int32)
        for back in tl.static_range(1, NGRAM + 1):  # pyright: ignore[reportGeneralTypeIssues]
            token = _at(last - back, tokens_ptr, length, source_ptr, source_length, SOURCE, VOCAB)
            earlier = _at(place - back, tokens_ptr, length, source_ptr, source_length, SOURCE, VOCAB)
            same = same & (earlier == token) & (token != -1)
            matching += same.to(tl.int32)
        best = tl.maximum(best, tl.where(matching > 0, matching * width + place, 0))
    most_matching = tl.max(best)  # the longest, then the latest
    place, ahead = most_matching % width, tl.arange(0, AHEAD)
    following = place + ahead % tl.maximum(last - place, 1)
    token = _at(following, tokens_ptr, length, source_ptr, source_length, SOURCE, VOCAB)
    most = tl.minimum(tl.load(limits_ptr + slot), tl.load(max_lengths_ptr + slot) - length - 1)
    is_allowed = (ahead < tl.minimum(most, COUNT)) & (tl.load(finish_ptr + slot) == RUNNING)
    is_allowed &= most_matching > 0  # pyright: ignore[reportOperatorIssue]
    is_end = (~(is_allowed & (token != -1))).to(tl.int32)
    is_proposed = tl.cumsum(is_end, 0) == 0
    tl.store(out_ptr + ahead * R + row, tl.where(is_proposed, token, -1), mask=ahead < COUNT)
    number = tl.sum(is_proposed.to(tl.int32))
    if number > 0:  # pyright: ignore[reportOperatorIssue] - padding, whose row is not its own, has none
        tl.store(drafted_ptr + slot, tl.load(drafted_ptr + slot) + number)


def propose(state: SequenceState, drafts: DraftState, slots: Tensor, count: int, vocab_size: int) -> Tensor:
    """Proposes the next `count` tokens of the slots [R] int32 -> [count, R] int32, and counts them."""
    rows, sources = len(slots), drafts.sources
    proposed = torch.empty((count, rows), dtype=torch.int32, device=slots.device)
    _propose[(rows,)](
        slots, state.tokens, state.lengths, state.max_lengths, state.finish, sources, drafts.source_lengths,
        drafts.limits, drafts.num_drafted, proposed, rows, state.tokens.shape[1], sources.shape[1], vocab_size, count,
        RUNNING=RUNNING, NGRAM=MAX_NGRAM, TILE=TILE, AHEAD=triton.next_power_of_2(count), num_warps=4,
    )  # fmt: skip
    return proposed
