"""The engine's book-keeping, over an executor that invents tokens: any sequence of calls leaves the pool full."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlm.config import ModelConfig
from vlm.errors import LimitError
from vlm.runtime.block_manager import BlockManager
from vlm.runtime.burst import RowResult
from vlm.runtime.llm_engine import LLMEngine
from vlm.runtime.request import Hypothesis, Request, SamplingParams
from vlm.runtime.scheduler import Scheduler

CONFIG = ModelConfig(1000, 8, 1, 1, 64, 0, 2, 1, 0)
STOP, LENGTH = 1, 3


class Invented:
    """Executor whose next token depends only on the sequence's seed and position; keeps the device's view of it."""

    def __init__(self, asynchronous: bool):
        self.asynchronous = asynchronous
        self.slots: dict[int, list] = {}  # slot -> [sequence, tokens, finish code]
        self.owners: dict[int, int] = {}

    def admit(self, sequences, stop_ids):
        for s, stops in zip(sequences, stop_ids, strict=True):
            self.slots[s.slot] = [s, list(s.tokens), 0, stops]

    def launch(self, sequences, steps):
        held = [b for s in sequences for part in (*s.self_blocks, s.spare_blocks, s.cross_blocks) for b in part]
        assert len(set(held)) == len(held) and 0 not in held, "a block has two owners"
        rows = []
        for s in sequences:
            assert len(s.slots) == len(s.self_blocks) == s.width
            for blocks in s.self_blocks:
                assert len(blocks) * 4 >= min(s.scheduled, s.max_length), "too few blocks for the burst"
            rows.append(self._run(s, steps))
        return FakeBurst(list(sequences), rows)

    def hypotheses(self, sequences):
        found = [self.slots[s.slot][1][s.prompt_length :] for s in sequences]
        return [[Hypothesis(tokens, [float(t) for t in tokens], 1.0)] for tokens in found]

    def _run(self, s, steps):
        _, tokens, code, stops = state = self.slots[s.slot]
        first = len(tokens)
        while code == 0 and len(tokens) < first + steps:
            tokens.append(token_at(s.seed, len(tokens)))
            code = STOP if tokens[-1] in stops else LENGTH if len(tokens) >= s.max_length else 0
        state[2] = code
        new = tokens[first:] + [0] * (steps - len(tokens) + first)
        return RowResult(len(tokens), code, new, [float(t) for t in new])


class FakeBurst:
    def __init__(self, sequences, rows):
        self.sequences, self.rows = sequences, rows

    def collect(self):
        return self.rows


def token_at(seed: int, position: int) -> int:
    return 2 if (seed * 31 + position * 17) % 23 == 0 else 3 + (seed * 7 + position) % 900


def expected(seed: int, prompt: int, new: int) -> list[int]:
    found = []
    for position in range(prompt, prompt + new):
        found.append(token_at(seed, position))
        if found[-1] == 2:
            break
    return found


def engine(num_self: int, slots: int, burst: int, asynchronous: bool) -> LLMEngine:
    blocks = BlockManager(num_self, 40)
    return LLMEngine(
        CONFIG, Invented(asynchronous), Scheduler(blocks, slots, 4, burst),
        max_batch_size=slots, max_seq_len=40, max_encoder_len=8, num_features=None, eos_token_ids=(2,),
    )  # fmt: skip


JOBS = st.lists(
    st.tuples(
        st.integers(0, 99),  # seed
        st.integers(1, 6),  # prompt tokens
        st.integers(1, 30),  # new tokens
        st.integers(1, 8),  # encoder rows
        st.integers(0, 6),  # steps before it arrives
        st.booleans(),  # aborted at some point
        st.integers(1, 4),  # beams
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(JOBS, st.integers(10, 40), st.integers(1, 6), st.sampled_from([1, 3, 4, 16]), st.booleans())
def test_tokens_do_not_depend_on_company_and_blocks_balance(jobs, num_self, slots, burst, asynchronous):
    llm = engine(num_self, slots, burst, asynchronous)
    pending, ids, done, aborted = list(jobs), {}, {}, set()
    for turn in range(2000):
        while pending and pending[0][4] <= turn:
            seed, prompt, new, rows, _, abort, beams = pending.pop(0)
            params = SamplingParams(max_new_tokens=new, seed=seed, num_beams=beams)
            request = Request((5,) * prompt, encoder_output=torch.zeros(rows, 8), params=params)
            try:
                ids[llm.add(request)] = (seed, prompt, new)
            except LimitError:  # too many beams for the slots or the pool
                assert beams > 1
                continue
            if abort:
                aborted.add(max(ids))
        if turn % 3 == 2 and aborted:
            llm.abort(aborted.pop())
        for update in llm.step():
            if update.finished:
                assert update.sequence.id not in done
                done[update.sequence.id] = update.sequence
        if not pending and not llm.has_work:
            break
    assert not llm.has_work and len(done) == len(ids)
    for request_id, sequence in done.items():
        want = expected(*ids[request_id])
        if sequence.finish_reason == "abort":
            assert sequence.generated == want[: len(sequence.generated)]
        else:
            assert sequence.generated == want
            assert sequence.logprobs == [float(t) for t in want]
    assert llm.scheduler.blocks.balanced


def test_preemption_happens_and_loses_nothing():
    llm = engine(num_self=12, slots=4, burst=4, asynchronous=True)
    params = SamplingParams(max_new_tokens=30, seed=3, ignore_eos=True)
    for _ in range(4):
        llm.add(Request((0,), encoder_output=torch.zeros(2, 8), params=params))
    done = []
    while llm.has_work:
        done += [u.sequence for u in llm.step() if u.finished]
    assert sum(s.preemptions for s in done) > 0
    assert [s.generated for s in done] == [[token_at(3, p) for p in range(1, 31)]] * 4
    assert llm.scheduler.blocks.balanced


def test_shared_blocks_return_with_their_last_owner():
    blocks = BlockManager(4, 2)
    mine = blocks.allocate(3, "self")
    blocks.share(mine[:2])
    blocks.free(mine)
    assert blocks.available("self") == 2 and not blocks.balanced
    blocks.free(mine[:2])
    assert blocks.balanced
