"""Stop conditions of a decode step."""

from __future__ import annotations

import pytest
import torch

from vlm.executor.kv_cache import CacheShape
from vlm.executor.state.batch_state import BatchState
from vlm.ops.sampling import append_and_check_stop as op
from vlm.requests.finish import LENGTH, LOOP, STOP
from vlm.requests.loops import LOOP_REPEATS, MIN_LOOP, loop_period, loop_runs_of
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.sequence import Sequence


def state_with(params: SamplingParams, prompt=(0,), limit=600, stops=(2,)) -> BatchState:
    state = BatchState(2, 700, CacheShape(8, 8, 4, 4), torch.device("cpu"))
    request = Request(tuple(prompt), encoder_output=torch.zeros(3, 4), params=params)
    sequence = Sequence(0, request, limit, 3, list(prompt), slots=[1], self_blocks=[[]])
    state.admit([sequence], [list(stops)])
    return state


def feed(state: BatchState, tokens) -> int:
    """Appends tokens until the slot finishes; how many went in."""
    slots = torch.tensor([1], dtype=torch.int32)
    for count, token in enumerate(tokens, 1):
        op.append_and_check_stop(state.slots, slots, torch.tensor([token]), torch.tensor([-1.0]))
        if state.slots.finish[1]:
            return count
    return len(tokens)


def test_end_token_length_and_stop_ids():
    state = state_with(SamplingParams(), limit=10)
    assert feed(state, [5, 6, 2, 7]) == 3 and state.slots.finish[1] == STOP
    assert state.slots.tokens[1, :5].tolist() == [0, 5, 6, 2, 0], "a finished slot stays as it is"
    state = state_with(SamplingParams(), limit=4)
    assert feed(state, [5, 6, 7, 8]) == 3 and state.slots.finish[1] == LENGTH
    state = state_with(SamplingParams(), stops=(2, 9), limit=4)
    assert feed(state, [5, 6, 9]) == 3 and state.slots.finish[1] == STOP


def test_forced_last_token():
    state = state_with(SamplingParams(forced_eos_token_id=2), limit=4)
    feed(state, [5, 6, 7])
    assert state.slots.tokens[1, :4].tolist() == [0, 5, 6, 2] and state.slots.finish[1] == STOP


@pytest.mark.parametrize("period", [1, 2, 7, 24, 60, 128])
def test_a_loop_ends_the_sequence_as_soon_as_it_is_one(period):
    loop = [10 + i for i in range(period)]
    state = state_with(SamplingParams(loop_detection=True), limit=699)
    lead = [500, 501, 502]
    end = feed(state, lead + loop * 200)
    assert state.slots.finish[1] == LOOP
    assert end == len(lead) + period + max(MIN_LOOP, LOOP_REPEATS * period)
    assert loop_period(state.slots.tokens[1, : end + 1].tolist()) == period


def test_no_loop_without_detection_and_none_in_varied_text():
    assert feed(state_with(SamplingParams(), limit=699), [7] * 300) == 300
    varied = torch.randint(3, 40, (600,), generator=torch.Generator().manual_seed(0)).tolist()
    assert feed(state_with(SamplingParams(loop_detection=True), limit=699), varied) == 600


def test_counters_of_a_history_equal_those_of_its_steps():
    tokens = [1, 7, 3] * 9 + [4, 4, 4] + [5, 6] * 4
    state = state_with(SamplingParams(), limit=699)
    feed(state, tokens)
    assert state.slots.loop_runs[1].tolist() == loop_runs_of([0, *tokens])
