"""Appends one token to each sequence and decides whether it ends: the last operation of a decode step.

Loops end it too: see vlm.requests.loops.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vlm.ops.state.sequences import SequenceState
from vlm.requests.finish import LENGTH, LOOP, RUNNING, STOP
from vlm.requests.loops import LOOP_REPEATS, MAX_PERIOD, MIN_LOOP


def reference(state: SequenceState, slots: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
    s = slots.long()
    length, limit = state.lengths[s].long(), state.max_lengths[s]
    alive = state.finish[s] == RUNNING
    token, logprobs = forced(state, s, length, tokens.int(), logprobs)
    at = length.clamp(max=state.tokens.shape[1] - 1)
    runs = _loop_runs(state, s, length, token)

    state.tokens[s, at] = torch.where(alive, token, state.tokens[s, at])
    state.logprobs[s, at] = torch.where(alive, logprobs, state.logprobs[s, at])
    state.loop_runs[s] = torch.where(alive[:, None], runs, state.loop_runs[s])
    state.lengths[s] += alive.int()

    code = torch.where(length + 1 >= limit, LENGTH, RUNNING)
    code = torch.where((state.detect_loops[s] == 1) & (runs >= loop_thresholds(s.device)).any(1), LOOP, code)
    code = torch.where((state.stop_ids[s] == token[:, None]).any(1), STOP, code)
    state.finish[s] = torch.where(alive, code.int(), state.finish[s])


def forced(state: SequenceState, s: Tensor, length: Tensor, token: Tensor, logprob: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the choice where there is one; a token that must be has the log-probability 0, as in Hugging Face."""
    for must, here in (
        (state.forced_bos[s], length == 1),
        (state.forced_eos[s], length + 1 == state.max_lengths[s]),
    ):
        here = here & (must >= 0)
        token, logprob = torch.where(here, must, token), torch.where(here, 0.0, logprob)
    return token, logprob


def _loop_runs(state: SequenceState, slots: Tensor, length: Tensor, token: Tensor) -> Tensor:
    """Returns the counters [R, MAX_PERIOD] once `token` stands at `length`."""
    earlier = length[:, None] - torch.arange(1, MAX_PERIOD + 1, device=slots.device)
    same = (earlier >= 0) & (state.tokens[slots[:, None], earlier.clamp(min=0)] == token[:, None])
    return torch.where(same, state.loop_runs[slots] + 1, 0)


def loop_thresholds(device: torch.device) -> Tensor:
    """Returns the run that makes a loop of each period, [MAX_PERIOD]."""
    return (torch.arange(1, MAX_PERIOD + 1, device=device) * LOOP_REPEATS).clamp(min=MIN_LOOP)


def append_and_check_stop(state: SequenceState, slots: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
    """Appends tokens[r] to slot slots[r], updates its counters and sets its finish code, all in place.

    A finished slot stays as it is. slots [R] int32, no slot twice but the padding slot; tokens [R] int64;
    logprobs [R] float32
    """
    if slots.is_cuda:
        from vlm.ops.kernels.append_and_check_stop import append_and_check_stop as kernel

        kernel(state, slots, tokens, logprobs)
    else:
        reference(state, slots, tokens, logprobs)
