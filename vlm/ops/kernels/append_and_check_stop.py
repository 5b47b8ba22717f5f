"""The end of a decode step, a program a row: append, count repetitions, decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton.language as tl
from torch import Tensor

from vlm.ops.kernels.dependent_launch import dependent, wait_for_inputs

if TYPE_CHECKING:
    from vlm.ops.sequence_state import SequenceState

STOP_CHUNK = 128  # end tokens looked at together


@dependent
def _append_and_check_stop(
    slots_ptr, token_ptr, logprob_ptr,
    tokens_ptr, logprobs_ptr, lengths_ptr, limits_ptr, finish_ptr, stops_ptr, first_ptr, last_ptr, detect_ptr,
    runs_ptr,
    width, STOPS: tl.constexpr, CHUNK: tl.constexpr, PERIODS: tl.constexpr, MIN_LOOP: tl.constexpr,
    REPEATS: tl.constexpr,
):  # fmt: skip
    wait_for_inputs()
    row = tl.program_id(0)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    # a finished slot, the padding slot too, stays as it is
    if tl.load(finish_ptr + slot) == 0:
        length, limit = tl.load(lengths_ptr + slot), tl.load(limits_ptr + slot)
        token, logprob = tl.load(token_ptr + row).to(tl.int32), tl.load(logprob_ptr + row)
        first, last = tl.load(first_ptr + slot), tl.load(last_ptr + slot)
        must = tl.where((length == 1) & (first >= 0), first, -1)
        must = tl.where((length + 1 == limit) & (last >= 0), last, must)
        token, logprob = tl.where(must >= 0, must, token), tl.where(must >= 0, 0.0, logprob)
        history = tokens_ptr + slot * width

        period = tl.arange(0, PERIODS) + 1
        before = length - period
        same = tl.load(history + before, mask=before >= 0, other=-1) == token
        runs = tl.where(same, tl.load(runs_ptr + slot * PERIODS + period - 1) + 1, 0)
        tl.store(runs_ptr + slot * PERIODS + period - 1, runs)
        looping = tl.max((runs >= tl.maximum(period * REPEATS, MIN_LOOP)).to(tl.int32))

        tl.store(history + length, token)
        tl.store(logprobs_ptr + slot * width + length, logprob)
        tl.store(lengths_ptr + slot, length + 1)

        at_stop = 0
        for begin in range(0, STOPS, CHUNK):
            stops = tl.load(stops_ptr + slot * STOPS + begin + tl.arange(0, CHUNK))
            at_stop = tl.maximum(at_stop, tl.max((stops == token).to(tl.int32)))
        code = tl.where(length + 1 >= limit, 3, 0)
        code = tl.where((tl.load(detect_ptr + slot) == 1) & (looping == 1), 2, code)
        code = tl.where(at_stop == 1, 1, code)
        tl.store(finish_ptr + slot, code)


def append_and_check_stop(state: SequenceState, slots: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
    from vlm.requests.loops import LOOP_REPEATS, MAX_PERIOD, MIN_LOOP

    stops = state.stop_ids.shape[1]  # a power of two
    _append_and_check_stop[(len(slots),)](
        slots, tokens, logprobs,
        state.tokens, state.logprobs, state.lengths, state.max_lengths, state.finish, state.stop_ids,
        state.forced_bos, state.forced_eos, state.detect_loops, state.loop_runs,
        state.tokens.shape[1], STOPS=stops, CHUNK=min(stops, STOP_CHUNK), PERIODS=MAX_PERIOD, MIN_LOOP=MIN_LOOP,
        REPEATS=LOOP_REPEATS, num_warps=1,
    )  # fmt: skip
