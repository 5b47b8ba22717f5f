"""The end of a decode step, a program a row: append, count repetitions, decide.

All but the token is there before the step begins, and read while the kernel ahead still runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, wait_for_inputs
from vlm.ops.kernels.jit import jit

if TYPE_CHECKING:
    from vlm.ops.state.sequences import SequenceState

STOP_CHUNK = 128  # end tokens looked at together


@jit
def _first_best(token_ptr, best_ptr, sum_ptr, row, PARTS: tl.constexpr, PADDED: tl.constexpr):
    """Returns the first of the likeliest tokens of a row's parts, and its log-probability."""
    i = tl.arange(0, PADDED)
    at, there = row * PARTS + i, i < PARTS
    best = tl.load(best_ptr + at, mask=there, other=-float("inf"))
    tokens, sums = tl.load(token_ptr + at, mask=there, other=0), tl.load(sum_ptr + at, mask=there, other=0.0)
    highest = tl.max(best)
    token = tl.min(tl.where(there & (best == highest), tokens, 2147483647))
    return token, -tl.log(tl.sum(tl.where(there, sums * tl.exp(best - highest), 0.0)))


@dependent
def _append_and_check_stop(
    slots_ptr, token_ptr, logprob_ptr, sum_ptr,
    tokens_ptr, logprobs_ptr, lengths_ptr, limits_ptr, finish_ptr, stops_ptr, first_ptr, last_ptr, detect_ptr,
    runs_ptr,
    width, PARTS: tl.constexpr, PADDED: tl.constexpr, STOPS: tl.constexpr, CHUNK: tl.constexpr,
    PERIODS: tl.constexpr, MIN_LOOP: tl.constexpr, REPEATS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    finish, detect = tl.load(finish_ptr + slot), tl.load(detect_ptr + slot)
    length, limit = tl.load(lengths_ptr + slot), tl.load(limits_ptr + slot)
    first, last = tl.load(first_ptr + slot), tl.load(last_ptr + slot)
    history = tokens_ptr + slot * width
    period = tl.arange(0, PERIODS) + 1
    before = length - period
    earlier = tl.load(history + before, mask=before >= 0, other=-1)
    runs = tl.load(runs_ptr + slot * PERIODS + period - 1)
    stops = tl.load(stops_ptr + slot * STOPS + tl.arange(0, CHUNK))
    wait_for_inputs()
    # a finished slot, the padding slot too, stays as it is
    if finish == 0:
        if PARTS:
            token, logprob = _first_best(token_ptr, logprob_ptr, sum_ptr, row, PARTS, PADDED)
        else:
            token, logprob = tl.load(token_ptr + row).to(tl.int32), tl.load(logprob_ptr + row)
        must = tl.where((length == 1) & (first >= 0), first, -1)
        must = tl.where((length + 1 == limit) & (last >= 0), last, must)
        token, logprob = tl.where(must >= 0, must, token), tl.where(must >= 0, 0.0, logprob)

        runs = tl.where(earlier == token, runs + 1, 0)
        tl.store(runs_ptr + slot * PERIODS + period - 1, runs)
        looping = tl.max((runs >= tl.maximum(period * REPEATS, MIN_LOOP)).to(tl.int32))

        tl.store(history + length, token)
        tl.store(logprobs_ptr + slot * width + length, logprob)
        tl.store(lengths_ptr + slot, length + 1)

        at_stop = tl.max((stops == token).to(tl.int32))
        for begin in range(CHUNK, STOPS, CHUNK):
            stops = tl.load(stops_ptr + slot * STOPS + begin + tl.arange(0, CHUNK))
            at_stop = tl.maximum(at_stop, tl.max((stops == token).to(tl.int32)))
        code = tl.where(length + 1 >= limit, 3, 0)
        code = tl.where((detect == 1) & (looping == 1), 2, code)
        code = tl.where(at_stop == 1, 1, code)
        tl.store(finish_ptr + slot, code)


def append_and_check_stop(
    state: SequenceState, slots: Tensor, tokens: Tensor, logprobs: Tensor, sums: Tensor | None = None
) -> None:
    """Appends a token a row, with its log-probability. With `sums` [R, P] these are of the P parts of the vocabulary:
    the likeliest token of each, its logit, and the sum of all tokens' exponentials relative to that."""
    from vlm.requests.loops import LOOP_REPEATS, MAX_PERIOD, MIN_LOOP

    stops = state.stop_ids.shape[1]  # a power of two
    parts = 0 if sums is None else sums.shape[1]
    _append_and_check_stop[(len(slots),)](
        slots, tokens, logprobs, logprobs if sums is None else sums,
        state.tokens, state.logprobs, state.lengths, state.max_lengths, state.finish, state.stop_ids,
        state.forced_bos, state.forced_eos, state.detect_loops, state.loop_runs,
        state.tokens.shape[1], PARTS=parts, PADDED=triton.next_power_of_2(parts), STOPS=stops,
        CHUNK=min(stops, STOP_CHUNK), PERIODS=MAX_PERIOD, MIN_LOOP=MIN_LOOP, REPEATS=LOOP_REPEATS, num_warps=1,
    )  # fmt: skip
