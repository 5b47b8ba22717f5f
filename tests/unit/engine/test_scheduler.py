"""The engine's book-keeping, over an executor that invents tokens: any sequence of calls leaves the pool full."""

from __future__ import annotations

import gc
import random
import weakref
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlm.config import EngineLimits, ModelConfig
from vlm.engine.block_manager import BlockManager
from vlm.engine.llm_engine import LLMEngine
from vlm.engine.prefix import block_keys
from vlm.engine.scheduler import Scheduler
from vlm.engine.scheduler_config import SchedulerConfig
from vlm.errors import LimitError
from vlm.executor.adapters import AdapterCache
from vlm.executor.decode_burst import StepOutput
from vlm.layers.adapters.base import AdapterRoom
from vlm.requests.adapters import NO_ADAPTER
from vlm.requests.prompt_table import Contents
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.sequence import SequenceStatus
from vlm.requests.token_update import Hypothesis

CONFIG = ModelConfig(1000, 8, 1, 1, 64, 0, 2, 1, 0)
STOP, LENGTH = 1, 3
NUM_ADAPTERS = 3


class DecoderAlone(ModelConfig):
    """Its blocks depend on nothing but the prompt: they may be shared."""

    cross_attention = False


ALONE = DecoderAlone(1000, 8, 1, 1, 64, 0, 2, 1, 0)


class Invented:
    """Executor whose next token depends only on the sequence's seed and position; keeps the device's view of it, and of
    each place in the cache which tokens it was computed from."""

    encoders = SimpleNamespace(visual=None, encoder=None)
    runner = SimpleNamespace(gives_context_logits=True)

    def __init__(self, config: ModelConfig, asynchronous: bool):
        # which take turns: as many as NUM_ADAPTERS, and fewer at once
        self.adapters = AdapterCache(room=AdapterRoom(max_loras=2, max_rank=1), capacity=NUM_ADAPTERS)
        for number in range(NUM_ADAPTERS):
            self.adapters.add(number, {})
        self.config, self.asynchronous = config, asynchronous
        self.slots: dict[int, list] = {}  # slot -> [sequence, tokens, finish code]
        self.cells: dict[tuple[int, int], tuple[int, ...]] = {}  # (block, place) -> tokens up to and with its own
        self.computed = 0
        self.ended: set[int] = set()  # ids

    def admit(self, sequences, stop_ids):
        for s, stops in zip(sequences, stop_ids, strict=True):
            for slot in s.slots:
                self.slots[slot] = [s, list(s.tokens), 0, stops]

    def prefill(self, prefills):
        # a layer writes all rows before any of them attends
        for s, span in prefills:
            self.computed += span.end - span.start
            for position in range(span.start, span.end):
                self._write(s.self_blocks[span.beam], s.tokens, position)
        for s, span in prefills:
            self._check(s.self_blocks[span.beam], s.tokens[: span.end])

    def release(self, sequences):
        ended = [s.id for s in sequences if s.status is SequenceStatus.FINISHED]
        assert len({*ended}) == len(ended) and not self.ended & {*ended}, "a sequence is released once"
        self.ended.update(ended)

    def encode_waiting(self, sequences):
        assert all(s.queued for s in sequences)

    def launch(self, sequences, steps, drafts, *, first, awaited):
        assert len({*first}) == len(first) and {*first} <= {*sequences}
        rows = []
        for s in sequences:
            assert len(s.slots) == len(s.self_blocks) == s.width and not s.pending_chunks
            own = [*s.spare_blocks, *(b for blocks in s.self_blocks for b in blocks[(len(s.tokens) - 1) // 4 :])]
            assert len(set(own)) == len(own) and 0 not in own, "what is written has two owners"
            for blocks in s.self_blocks:
                assert len(blocks) * 4 >= min(s.scheduled, s.max_length), "too few blocks for the burst"
                self._check(blocks, s.tokens[:-1])
            rows.append(self._run(s, steps, min(drafts, s.max_drafts), s in first))
        return FakeBurst(list(sequences), rows, steps, drafts)

    def _write(self, blocks, tokens, position):
        self.cells[blocks[position // 4], position % 4] = tuple(tokens[: position + 1])

    def _check(self, blocks, tokens):
        for position in range(len(tokens)):
            assert self.cells[blocks[position // 4], position % 4] == tuple(tokens[: position + 1]), "another's cache"

    def hypotheses(self, sequences):
        found = [self.slots[s.slot][1][s.prompt_length :] for s in sequences]
        return [[Hypothesis(tokens, [float(t) for t in tokens], 1.0)] for tokens in found]

    def _run(self, s, steps, drafts, has_first):
        _, tokens, code, stops = state = self.slots[s.slot]
        first, accepted = len(tokens), s.num_accepted
        if has_first:
            assert s.width == 1 and not s.max_drafts and not code
            self._check(s.self_blocks[0], tokens)
            code = self._append(s, tokens, stops)
        for _ in range(steps):
            proposed = min(drafts, s.max_length - len(tokens) - 1)
            if s.width == 1:
                self._check(s.self_blocks[0], tokens[:-1])
                for position in range(len(tokens) - 1, len(tokens) + proposed):
                    self._write(s.self_blocks[0], [*tokens, *[-1] * proposed], position)
            right = (s.seed + len(tokens)) % (proposed + 1) if not code else 0
            for n in range(right + 1):
                if code:
                    break
                accepted += n > 0
                self._write(s.self_blocks[0], tokens, len(tokens) - 1) if s.width == 1 else None
                code = self._append(s, tokens, stops)
        state[2] = code
        new = tokens[first:] + [0] * (steps * (1 + drafts) + has_first - len(tokens) + first)
        return StepOutput(len(tokens), code, new, [float(t) for t in new], num_accepted=accepted)

    def _append(self, s, tokens, stops):
        tokens.append(token_at(s.seed, len(tokens)))
        return STOP if tokens[-1] in stops else LENGTH if len(tokens) >= s.max_length else 0


class FakeBurst:
    def __init__(self, sequences, rows, steps, drafts):
        self.sequences, self.rows, self.steps, self.drafts = sequences, rows, steps, drafts

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


def engine(
    num_self: int, slots: int, burst: int, asynchronous: bool, config=CONFIG, max_prefill_tokens: int = 8192,
    batch_invariant: bool = False, drafts: int = 0,
) -> LLMEngine:  # fmt: skip
    alone = not config.cross_attention
    schedule = SchedulerConfig(
        slots, 4, burst, max_prefill_tokens, config.vocab_size, prefix_sharing=alone and not batch_invariant,
        max_adapters=2, batch_invariant=batch_invariant, num_speculative_tokens=drafts, asynchronous=asynchronous,
    )  # fmt: skip
    return LLMEngine(
        Invented(config, asynchronous), Scheduler(BlockManager(num_self, 0 if alone else 40), schedule),
        EngineLimits(slots, 40, 8), eos_token_ids=(2,),
    )  # fmt: skip


JOBS = st.lists(
    st.tuples(
        st.integers(0, 99),  # seed
        st.integers(1, 18),  # prompt tokens
        st.integers(1, 30),  # new tokens
        st.integers(1, 8),  # encoder rows
        st.integers(0, 6),  # steps before it arrives
        st.booleans(),  # aborted at some point
        st.integers(1, 4),  # beams
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(
    JOBS, st.integers(14, 50), st.integers(1, 6), st.sampled_from([1, 3, 4, 16]), st.booleans(),
    st.sampled_from([CONFIG, ALONE]), st.sampled_from([3, 7, 100]), st.booleans(), st.sampled_from([0, 1, 4]),
)  # fmt: skip
def test_tokens_do_not_depend_on_company_and_blocks_balance(
    jobs, num_self, slots, burst, asynchronous, config, max_prefill_tokens, batch_invariant, drafts
):
    llm = engine(num_self, slots, burst, asynchronous, config, max_prefill_tokens, batch_invariant, drafts)
    pending, ids, done, aborted = list(jobs), {}, {}, set()
    for turn in range(2000):
        while pending and pending[0][4] <= turn:
            seed, prompt, new, rows, _, abort, beams = pending.pop(0)
            own_drafts = None if seed % 3 else min(seed % 2, drafts)
            params = SamplingParams(
                max_new_tokens=min(new, 40 - prompt), seed=seed, num_beams=beams, prompt_lookup_num_tokens=own_drafts
            )
            # prompts begin alike, but for a few
            tokens = (5 + seed % 3,) * (prompt - 1) + (seed % 2,)
            output = torch.zeros(rows, 8) if config.cross_attention else None
            try:
                adapter = seed // 3 % (NUM_ADAPTERS + 1) - 1
                ids[llm.add([Request(tokens, encoder_output=output, params=params, adapter_id=adapter)])[0]] = (
                    seed,
                    prompt,
                    min(new, 40 - prompt),
                )
            except LimitError:  # too many beams for the slots or the pool
                assert beams > 1
                continue
            if abort:
                aborted.add(max(ids))
        if turn % 3 == 2 and aborted:
            llm.abort(aborted.pop())
        for update in llm.step():
            if update.finished:
                assert update.request_id not in done
                done[update.request_id] = update.completion
        if not pending and not llm.has_work:
            break
    assert not llm.has_work and len(done) == len(ids)
    for request_id, completion in done.items():
        want = expected(*ids[request_id])
        if completion.finish_reason == "abort":
            assert completion.token_ids == want[: len(completion.token_ids)]
        else:
            assert completion.token_ids == want
            assert completion.logprobs == [float(t) for t in want]
        assert not (batch_invariant and completion.preemptions)
    assert llm.scheduler.blocks.balanced


def chunks_of_each(requests: list[Request], steps_apart: int, **options) -> list[list[tuple[int, int, int]]]:
    """(beam, start, end) of the chunks in which each request's prompt was computed"""
    llm = engine(60, 4, 4, False, ALONE, **options)
    prefill, met = llm.executor.prefill, {}

    def noted(prefills):
        for sequence, chunk in prefills:
            met.setdefault(sequence.id, []).append((chunk.beam, chunk.start, chunk.end))
        prefill(prefills)

    llm.executor.prefill = noted
    ids = []
    for request in requests:
        ids.append(llm.add([request])[0])
        for _ in range(steps_apart):
            llm.step()
    while llm.has_work:
        llm.step()
    return [met.get(request_id, []) for request_id in ids]


def noted_bursts(llm: LLMEngine) -> list[tuple[int, int, int]]:
    """Sequences of each burst, how many of them have a token of their prefill, and its steps, as they come"""
    launch, met = llm.executor.launch, []

    def noted(sequences, steps, drafts, *, first, **options):
        met.append((len(sequences), len(first), steps))
        return launch(sequences, steps, drafts, first=first, **options)

    llm.executor.launch = noted
    return met


def bursts(slots: int, prompts: int) -> list[tuple[int, int, int]]:
    """Returns what `noted_bursts` does, of prompts of which a step computes one."""
    llm = engine(200, slots, 16, True, ALONE, max_prefill_tokens=10)
    found = noted_bursts(llm)
    for first in range(prompts):
        llm.add([Request((3 + first,) * 10, params=SamplingParams(max_new_tokens=29, seed=1, ignore_eos=True))])
    while llm.has_work:
        llm.step()
    return found


def test_bursts_are_short_while_many_sequences_join():
    first = [(1, 1, 0), (2, 1, 1), (3, 1, 1), (4, 1, 1), (5, 1, 1), (6, 1, 1), (7, 1, 4), (8, 1, 16)]
    assert bursts(slots=8, prompts=8)[:8] == first
    # those that wait for a slot do not join
    assert bursts(slots=2, prompts=8)[:3] == [(1, 1, 0), (2, 1, 16), (2, 0, 12)]


PREFILLED = [(1, 1, 0), (1, 0, 4)]  # a sequence, five tokens of it
STEPPED = [(1, 0, 1), (1, 0, 4)]


@pytest.mark.parametrize(
    ("options", "request_options", "want"),
    [
        ({}, {}, PREFILLED),
        ({"max_prefill_tokens": 4}, {}, PREFILLED),
        ({"batch_invariant": True}, {}, PREFILLED),
        ({}, {"max_new_tokens": 1}, PREFILLED[:1]),
        ({"burst": 1}, {}, [(1, 1, 0), *[(1, 0, 1)] * 4]),
        ({}, {"prompt": 1}, STEPPED),
        ({}, {"num_beams": 2}, STEPPED),
        ({"drafts": 2}, {}, STEPPED),
        ({"drafts": 2}, {"prompt_lookup_num_tokens": 0}, PREFILLED),
    ],
    ids=str,
)
def test_a_prompt_gives_the_first_token(options, request_options, want):
    """Where something of it is computed, for one sequence that does not draft: then no decode step does."""
    llm = engine(60, 4, **{"burst": 16, "asynchronous": False, "config": ALONE} | options)
    settings = {"prompt": 10, "max_new_tokens": 5, "seed": 1, "ignore_eos": True} | request_options
    prompt = tuple(range(10, 10 + settings.pop("prompt")))
    found = noted_bursts(llm)
    llm.add([Request(prompt, params=SamplingParams(**settings))])
    updates = [update for _ in range(40) for update in llm.step()]
    assert [(n, first, 4 if steps > 1 else steps) for n, first, steps in found][: len(want)] == want
    if settings.get("num_beams", 1) == 1:
        num_new = settings["max_new_tokens"]
        assert [t for u in updates for t in u.token_ids] == [token_at(1, len(prompt) + n) for n in range(num_new)]
        assert want == STEPPED or len(updates[0].token_ids) == 1


@pytest.mark.parametrize(
    ("asynchronous", "streamed", "want"),
    [
        (True, True, [(1, 1, 0), (1, 0, 16), (1, 0, 16), (1, 0, 1)]),
        (True, False, [(1, 1, 16), (1, 0, 16), (1, 0, 1)]),  # whoever sees no tokens does not wait for the first one
        (False, False, [(1, 1, 0), (1, 0, 16), (1, 0, 16), (1, 0, 1)]),  # a host looks whether that was the last one
    ],
)
def test_a_first_burst_has_a_step_of_its_own_where_tokens_are_shown(asynchronous, streamed, want):
    llm = engine(60, 4, 16, asynchronous, ALONE)
    found, awaited, launch = noted_bursts(llm), [], llm.executor.launch
    llm.executor.launch = lambda *args, **options: awaited.append(options["awaited"]) or launch(*args, **options)
    [number] = llm.add(
        [Request(tuple(range(10, 16)), params=SamplingParams(max_new_tokens=34, seed=1, ignore_eos=True))]
    )
    updates = []
    while llm.has_work:
        updates += llm.step(streamed=streamed)
    assert found == want and updates[-1].finished and updates[-1].request_id == number
    assert awaited == [False] * (len(want) - 1) + [True]  # nothing is left to do beside the last one
    assert [t for update in updates for t in update.token_ids] == [token_at(1, 6 + n) for n in range(34)]


def test_a_prompt_that_is_known_gives_no_token():
    """Of nine tokens eight are known, and the first step takes the last one."""
    llm = engine(60, 4, 16, False, ALONE)
    found, params = noted_bursts(llm), SamplingParams(max_new_tokens=5, seed=1, ignore_eos=True)
    for _ in range(2):
        llm.add([Request(tuple(range(10, 19)), params=params)])
        while llm.has_work:
            llm.step()
    assert found == [*PREFILLED, *STEPPED]


def test_who_joins_has_a_token_ahead_of_the_others():
    llm = engine(200, 8, 16, False, ALONE)
    params = SamplingParams(max_new_tokens=25, seed=1, ignore_eos=True)
    first, second = llm.add([Request(tuple(range(10, 20)), params=params)])[0], None
    found = noted_bursts(llm)
    for turn in range(3):
        if turn == 1:
            second = llm.add([Request(tuple(range(30, 40)), params=params)])[0]
        updates = {update.request_id: len(update.token_ids) for update in llm.step()}
        assert updates == ({first: 1}, {first: 16, second: 17}, {first: 8, second: 8})[turn]
    assert found == [(1, 1, 0), (2, 1, 16), (2, 0, 8)] and not llm.has_work


@pytest.mark.parametrize(("prompt", "want"), [(10, [(2, 2, 0), (2, 0, 16)]), (1, [(2, 0, 1), (2, 0, 15)])])
def test_an_idle_device_goes_on_behind_the_first_tokens(prompt, want):
    """They are reported while it does."""
    llm = engine(200, 8, 16, True, ALONE)
    params, found = SamplingParams(max_new_tokens=25, seed=1, ignore_eos=True), noted_bursts(llm)
    ids = [llm.add([Request((10 + n,) * prompt, params=params)])[0] for n in range(2)]
    assert [(u.request_id, len(u.token_ids)) for u in llm.step()] == [(ids[0], 1), (ids[1], 1)] and found == want
    later = [len(update.token_ids) for _ in range(2) for update in llm.step()]
    assert sum(later) == 48 and not llm.has_work and sum(n for *_, n in found) == 25 - (prompt > 1)


@pytest.mark.parametrize("steps_apart", [0, 1, 3])
@pytest.mark.parametrize("max_prefill_tokens", [5, 7, 100])
def test_a_batch_invariant_engine_cuts_prompts_as_if_each_were_alone(max_prefill_tokens, steps_apart):
    options = {"max_prefill_tokens": max_prefill_tokens, "batch_invariant": True}
    prompts = [(3,) * 19, (3,) * 8, (3,) * 2, (3,) * 14, (3,) * 16]
    requests = [
        Request(prompt, params=SamplingParams(max_new_tokens=6, seed=1, num_beams=1 + number % 2))
        for number, prompt in enumerate(prompts)
    ]
    alone = [chunks_of_each([request], 0, **options)[0] for request in requests]
    assert chunks_of_each(requests, steps_apart, **options) == alone
    if max_prefill_tokens < 100 and not steps_apart:
        assert chunks_of_each(requests, 0, max_prefill_tokens=max_prefill_tokens) != alone, "else they share their room"


def test_a_batch_invariant_engine_recomputes_nothing():
    """It takes in what fits at full length; the others wait."""
    llm = engine(num_self=12, slots=4, burst=4, asynchronous=True, batch_invariant=True)
    params = SamplingParams(max_new_tokens=30, seed=3, ignore_eos=True)
    for _ in range(4):
        llm.add([Request((0,), encoder_output=torch.zeros(2, 8), params=params)])
    done, most = [], 0
    while llm.has_work:
        done += [u.completion for u in llm.step() if u.finished]
        most = max(most, len(llm.scheduler.running))
    assert most == 1 and [c.preemptions for c in done] == [0] * 4 and llm.scheduler.blocks.balanced


def computed(llm: LLMEngine, prompt: list[int], **params) -> int:
    """Prompt tokens that a request costs."""
    before = llm.executor.computed
    llm.add([Request(tuple(prompt), params=SamplingParams(max_new_tokens=6, seed=1, ignore_eos=True, **params))])
    while llm.has_work:
        llm.step()
    return llm.executor.computed - before


def test_equal_beginnings_are_computed_once():
    llm = engine(60, 4, 4, False, ALONE)
    prompt = list(range(10, 31))
    assert computed(llm, prompt) == 21
    assert computed(llm, prompt) == 0, "five whole blocks, and the first step takes the last token"
    assert computed(llm, [*prompt[:10], 9, *prompt[11:]]) == 13, "two blocks of four are equal"
    answer = [token_at(1, p) for p in range(21, 27)]
    assert computed(llm, [*prompt, *answer[:4], 7, 8]) == 3, "a conversation goes on: six blocks are known"
    assert computed(llm, list(range(40, 61)), num_beams=3) == 20, "beams share their prompt"
    assert computed(llm, list(range(60, 79)), num_beams=3) == 18 + 2 * 2, "but for its last block, which is begun"


def test_what_stands_behind_an_id_makes_it_equal_or_not():
    ids = [CONFIG.vocab_size + i for i in range(4)]
    one, same, other = (Contents((key,), (0,), 4) for key in (b"cat", b"cat", b"dog"))
    keys = [block_keys([1, 2, 3, 4, *ids, 5, 6, 7, 8], 4, CONFIG.vocab_size, c) for c in (one, same, other)]
    assert keys[0] == keys[1] and len(set(keys[0])) == 3
    assert keys[0][0] == keys[2][0] and keys[0][1] != keys[2][1] and keys[0][2] != keys[2][2]


def test_contents_are_told_apart_by_where_they_begin():
    """Two pictures of a cat and of a dog, five rows together: where the cat's end is part of a key, but not where the
    rows' ids begin."""
    own, v = (b"cat", b"dog"), CONFIG.vocab_size
    rows = [1, *(v + i for i in range(5)), 2, 3]
    keys = [block_keys(rows, 8, v, Contents(names, (0, end), 5)) for names in (own, own[::-1]) for end in (1, 2, 3, 4)]
    assert len({*map(tuple, keys)}) == len(keys)
    shifted = [t + 2 if t >= v else t for t in rows]
    assert block_keys(shifted, 8, v, Contents((b"table", *own), (0, 2, 4), 7)) == keys[1]
    alike = [block_keys([v + 1, v + 2], 2, v, Contents((b"cat",) * n, tuple(range(0, 2 * n, 2)), 4)) for n in (1, 2)]
    assert alike[0] != alike[1], "the second row of a cat and the third, or the first of another one"


@pytest.mark.parametrize("known", range(6))
def test_known_keys_are_not_computed_again(known):
    ids = [CONFIG.vocab_size + i for i in range(18)]
    contents = Contents((b"cat", b"dog"), (0, 7), 18)
    keys = block_keys([*ids, 1, 2, 3], 4, CONFIG.vocab_size, contents)
    assert len(keys) == 5
    assert block_keys([*ids, 1, 2, 3], 4, CONFIG.vocab_size, contents, known=keys[:known]) == keys


def test_adapters_share_no_blocks():
    alone, first, second = (block_keys(range(8), 4, CONFIG.vocab_size, adapter_id=i) for i in (NO_ADAPTER, 0, 1))
    assert alone == block_keys(range(8), 4, CONFIG.vocab_size)
    assert len({*alone, *first, *second}) == 6


def test_a_sequence_waits_until_the_device_has_room_for_its_adapter():
    llm = engine(60, 4, 4, asynchronous=False)
    for adapter in (0, NO_ADAPTER, 1, 2, 0):
        output, params = torch.zeros(1, 8), SamplingParams(max_new_tokens=9, seed=1, ignore_eos=True)
        llm.add([Request((5,), encoder_output=output, params=params, adapter_id=adapter)])
    batches = []
    while llm.has_work:
        llm.step()
        batches.append([s.request.adapter_id for s in llm.scheduler.running])
    assert batches[0] == [0, NO_ADAPTER, 1], "who comes later does not overtake"
    assert [2, 0] in batches and not batches[-1]


def test_room_is_made_by_the_longest_unused():
    blocks = BlockManager(3, 0)
    first, second = blocks.allocate(1, "self"), blocks.allocate(1, "self")
    blocks.register(first[0], b"a")
    blocks.register(second[0], b"b")
    blocks.free(second)
    blocks.free(first)
    assert blocks.available("self") == 3 and blocks.balanced
    assert blocks.lookup([b"a", b"b"]) == first + second and blocks.num_evictable(first + second) == 2
    taken = blocks.allocate(2, "self")
    assert second[0] in taken and blocks.lookup([b"b"]) == [] and blocks.lookup([b"a"]) == first
    blocks.acquire(first, "self")
    assert blocks.available("self") == 0
    blocks.acquire(first, "self")
    blocks.free([*first, *taken])
    assert not blocks.balanced
    blocks.free(first)
    assert blocks.balanced


STEPS = {"allocate": 8, "share": 2, "free": 8, "register": 4, "acquire": 4, "forget": 1}  # and how often each comes


@pytest.mark.parametrize("seed", range(20))
def test_blocks_are_those_of_their_owners(seed):
    """Beside a book that has a list of blocks of each owner and nothing else; kinds never share a block, as in an
    engine."""
    draw = random.Random(seed)
    blocks = BlockManager(draw.randint(1, 8), draw.choice([0, 0, 1, 4]))
    owners: list[tuple[str, list[int]]] = []
    known: dict[bytes, int] = {}
    ever: set[bytes] = set()
    for number in range(400):
        [step] = draw.choices([*STEPS], [*STEPS.values()])
        which, count, kind = draw.randrange(100), draw.randrange(5), draw.choice(["self", "cross"])
        owned = {block for own, held in owners if own == kind for block in held}
        if step == "allocate" and count <= blocks.available(kind):
            taken = blocks.allocate(count, kind)
            assert len(set(taken)) == count and not any(set(taken) & set(held) for _, held in owners)
            known = {key: block for key, block in known.items() if block not in taken}
            owners.append((kind, taken))
        elif step == "share" and owners:
            own, held = owners[which % len(owners)]
            blocks.share(held[:count])
            owners.append((own, held[:count]))
        elif step == "free" and owners:
            own, held = owners.pop(which % len(owners))
            blocks.free(held, own)
        elif step == "register" and kind == "self":
            for block in sorted(owned - {*known.values()})[:count]:
                blocks.register(block, b"%d %d" % (number, block))
                known[b"%d %d" % (number, block)] = block
        elif step == "acquire" and known:
            hits = blocks.lookup([[*known][which % len(known)]])
            if blocks.num_evictable(hits) <= blocks.available("self"):
                blocks.acquire(hits, "self")
                owners.append(("self", hits))
        elif step == "forget":
            blocks.reset_prefix_cache()
            known = {}
        for each in ("self", "cross"):
            held = {block for own, of_one in owners if own == each for block in of_one}
            assert blocks.num_used[each] == len(held)
        ever |= known.keys()
        assert {key: found[0] for key in ever if (found := blocks.lookup([key]))} == known
        assert blocks.balanced == (not any(held for _, held in owners))
    for own, held in owners:
        blocks.free(held, own)
    assert blocks.balanced


class Watched(Request):
    """It may be referred to weakly."""


def test_what_is_aborted_before_it_decodes_is_let_go():
    llm = engine(num_self=12, slots=2, burst=4, asynchronous=True, config=ALONE, max_prefill_tokens=5)
    for first in (10, 20, 30):
        request = Watched(tuple(range(first, first + 18)), params=SamplingParams(max_new_tokens=3))
        number, gone = llm.add([request])[0], weakref.ref(request)
        del request
        llm.step()
        llm.abort(number)
        assert [update.completion.finish_reason for update in llm.step()] == ["abort"]
        llm.executor.slots.clear()  # which here know who had them last
        gc.collect()
        assert gone() is None


def test_preemption_happens_and_loses_nothing():
    llm = engine(num_self=12, slots=4, burst=4, asynchronous=True)
    params = SamplingParams(max_new_tokens=30, seed=3, ignore_eos=True)
    for _ in range(4):
        llm.add([Request((0,), encoder_output=torch.zeros(2, 8), params=params)])
    done = []
    while llm.has_work:
        done += [u.completion for u in llm.step() if u.finished]
    assert sum(s.preemptions for s in done) > 0
    assert [s.token_ids for s in done] == [[token_at(3, p) for p in range(1, 31)]] * 4
    assert llm.scheduler.blocks.balanced


def test_a_sequence_says_where_it_is():
    llm = engine(num_self=12, slots=2, burst=4, asynchronous=False, config=ALONE, max_prefill_tokens=5)
    params = SamplingParams(max_new_tokens=30, seed=3, ignore_eos=True)
    for first in (10, 20, 30):
        llm.add([Request(tuple(range(first, first + 8)), params=params)])
    sequences, seen = list(llm._sequences.by_id.values()), [set(), set(), set()]
    while llm.has_work:
        for sequence, statuses in zip(sequences, seen, strict=True):
            statuses.add(sequence.status)
            held = bool(sequence.slots and sequence.self_blocks)
            assert held == (not sequence.queued and not sequence.finished)
            assert (sequence.status is SequenceStatus.PREFILLING) == bool(sequence.pending_chunks)
        llm.step()
    assert all(sequence.finished and not sequence.slots for sequence in sequences)
    assert {SequenceStatus.WAITING, SequenceStatus.PREFILLING, SequenceStatus.RUNNING} <= set().union(*seen)
    assert [SequenceStatus.PREEMPTED in statuses for statuses in seen] == [s.preemptions > 0 for s in sequences]
    assert sum(s.preemptions for s in sequences) > 0


def test_shared_blocks_return_with_their_last_owner():
    blocks = BlockManager(4, 2)
    mine = blocks.allocate(3, "self")
    blocks.share(mine[:2])
    blocks.free(mine)
    assert blocks.available("self") == 2 and not blocks.balanced
    blocks.free(mine[:2])
    assert blocks.balanced
