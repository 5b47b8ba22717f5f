"""The loop under pipelines and servers: what it adds, runs, loses and drops."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import vlm
from tests.kits.servers.server_kit import is_empty
from vlm.config import RuntimeConfig
from vlm.engine import admission
from vlm.engine.engine_loop import EngineLoop
from vlm.errors import InputError, LimitError
from vlm.executor.memory import FULL
from vlm.requests.sequence import Sequence

TEXT = "translate English to German: The old ship is small."


@pytest.fixture(scope="module")
def t5():
    return vlm.load("mini-t5", runtime=RuntimeConfig("cpu", burst=2))


def requests(pipeline, *lengths: int) -> list:
    return [pipeline.request({"text": TEXT}, max_new_tokens=n, ignore_eos=True) for n in lengths]


def test_completions_come_in_the_order_of_their_requests(t5):
    ended, steps = [], []
    loop = EngineLoop(t5.llm, ended.append, lambda batch_size, seconds: steps.append(batch_size))
    found = loop.run(requests(t5, 9, 2, 5))
    assert [len(completion.token_ids) for completion in found] == [9, 2, 5]
    assert {completion.finish_reason for completion in found} == {"length"} and max(steps) == 3
    assert sorted(map(id, ended)) == sorted(map(id, found)) and is_empty(t5)


def test_calls_that_are_open_beside_each_other_have_their_own_updates(t5):
    loop = EngineLoop(t5.llm)
    [first], [second, third] = loop.add(requests(t5, 9)), loop.add(requests(t5, 4, 30))
    updates = {first: [], second: []}
    while not any(update.finished for update in updates[second]):
        updates[second] += loop.step_for([second])
    [completion] = loop.run(requests(t5, 20))  # by which all but the third one have ended
    loop.clear([third])
    assert len(completion.token_ids) == 20 and loop.has_work is False
    updates[first] += loop.step_for([first])
    for request_id, length in ((first, 9), (second, 4)):
        tokens = [token for update in updates[request_id] for token in update.token_ids]
        assert {update.request_id for update in updates[request_id]} == {request_id}
        assert tokens == updates[request_id][-1].completion.token_ids and len(tokens) == length
    assert is_empty(t5)


def test_a_dropped_request_takes_nobodys_updates_with_it(t5):
    loop = EngineLoop(t5.llm)
    [kept], [dropped] = loop.add(requests(t5, 12)), loop.add(requests(t5, 12))
    loop.step_for([kept])
    loop.clear([dropped])
    updates = loop.step_for([kept])
    while not updates[-1].finished:
        updates += loop.step_for([kept])
    assert {update.request_id for update in updates} == {kept} and is_empty(t5)


def test_another_thread_is_told(t5, monkeypatch):
    """One that comes while a step lasts; who has been in it goes on."""
    loop, within, leave = EngineLoop(t5.llm), threading.Event(), threading.Event()
    step = t5.llm.step
    monkeypatch.setattr(t5.llm, "step", lambda **options: (within.set(), leave.wait(60), step(**options))[-1])
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(loop.run, requests(t5, 3))
        assert within.wait(60)
        with pytest.raises(InputError, match="another thread is using this pipeline"):
            loop.run(requests(t5, 3))
        leave.set()
        [completion] = running.result(60)
    assert len(completion.token_ids) == 3 and is_empty(t5)


def test_requests_are_queued_all_or_none(t5):
    good, large = requests(t5, 4, 10**6)
    loop = EngineLoop(t5.llm)
    with pytest.raises(LimitError, match="built for"):
        loop.add([good, large])
    loop.clear([])
    assert is_empty(t5)


def test_updates_do_not_change_with_their_sequence(t5):
    loop, updates = EngineLoop(t5.llm), []
    [request_id] = loop.add(requests(t5, 7))
    while loop.has_work:
        updates += loop.step()
    *before, last = updates
    assert len(before) > 1 and all(update.token_ids and not update.finished for update in before)
    assert [t for update in updates for t in update.token_ids] == last.completion.token_ids
    assert {update.request_id for update in updates} == {request_id}
    assert all(len(update.logprobs) == len(update.token_ids) for update in updates)


def test_a_step_without_memory_loses_its_requests_alone(t5, monkeypatch):
    loop = EngineLoop(t5.llm)
    with monkeypatch.context() as patch:

        def full(*arguments, **options):
            raise torch.OutOfMemoryError("CUDA out of memory.")

        patch.setattr(t5.llm.executor, "launch", full)
        [lost] = loop.run(requests(t5, 3))
    assert lost.out_of_memory and not lost.token_ids and str(loop.memory_error()) == FULL
    [completion] = loop.run(requests(t5, 3))
    assert not completion.out_of_memory and is_empty(t5)


def test_what_is_dropped_ends_as_aborted(t5):
    ended = []
    loop = EngineLoop(t5.llm, ended.append)
    ids = loop.add(requests(t5, 30, 30))
    loop.step()
    loop.clear(ids)
    assert [completion.finish_reason for completion in ended] == ["abort"] * 2 and is_empty(t5)


@pytest.mark.parametrize("steps", [1, 3, 100])
def test_nothing_is_held_of_a_prompt_that_is_computed_or_dropped(steps):
    """The rows of its images are on the device while it is computed, and no longer."""
    llava = vlm.load("mini-llava", runtime=RuntimeConfig("cpu", max_prefill_tokens=3, burst=2))
    loop, held = EngineLoop(llava.llm), llava.llm.executor._prompt_embeds
    source = {"pixel_values": torch.zeros(3, *llava.processor.vision.image_size), "prompt": "What is this?"}
    ids = loop.add([llava.request(source, max_new_tokens=3)])
    loop.step()
    assert set(held) == set(ids)
    for _ in range(steps):
        loop.step()
    loop.clear(ids)
    assert not held and is_empty(llava)


def test_stops_are_looked_for_without_a_copy_of_the_output(t5, monkeypatch):
    copies, generated = [], Sequence.generated.fget
    monkeypatch.setattr(Sequence, "generated", property(lambda self: copies.append(self.id) or generated(self)))
    options = {"max_new_tokens": 20, "ignore_eos": True, "stop": "nowhere", "stop_words_ids": [[1, 1]]}
    [completion] = EngineLoop(t5.llm).run([t5.request({"text": TEXT}, **options)])
    assert len(completion.token_ids) == 20 and len(copies) == 1  # the completion's


def test_ngrams_of_an_input_hold_no_more_tokens_than_are_taken(t5, monkeypatch):
    ids = [*range(3, 13)]
    ask = lambda size: t5.generate({"input_ids": ids}, max_new_tokens=1, encoder_no_repeat_ngram_size=size)  # noqa: E731
    monkeypatch.setattr(admission, "MAX_NGRAM_TOKENS", 29)
    words = r"encoder_no_repeat_ngram_size is 5: the input's 10 tokens make n-grams of 30 tokens in all, at most 29"
    with pytest.raises(LimitError, match=words):
        ask(5)
    assert ask(4) and ask(10) and ask(2**30 - 1)


def test_calls_that_are_stopped_end_with_the_step_under_way(t5):
    """All that are open do, when another one has ended meanwhile, too; later ones are as ever."""
    length = {"max_new_tokens": 2, "ignore_eos": True}
    first, second, third = (t5.as_completed([TEXT] * 3, window=1, **length) for _ in range(3))
    for call in (first, second, third):
        next(call)
    third.close()
    t5.stop()
    assert not list(first) and not list(second) and is_empty(t5)
    assert len(list(t5.as_completed([TEXT] * 3, **length))) == 3
