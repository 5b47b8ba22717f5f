"""A step that runs out of memory: its requests are told, the others go on, and the pool is whole."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch

import vlm
from tests.server_kit import is_empty
from vlm.async_pipeline import AsyncPipeline
from vlm.config import RuntimeConfig
from vlm.errors import EngineError, OutOfMemoryError
from vlm.processing.workers import ImageWorkers, MediaLimits

TEXT = "translate English to German: The old ship is small."
PROMPT = "USER: Tell me what the sign by the old road says today. ASSISTANT:"
# a T5's prompts are one token long: there is nothing to prefill
STAGES = [("mini-t5", "admit"), ("mini-t5", "launch"), *(("mini-llava", s) for s in ("admit", "prefill", "launch"))]


def fails_once(monkeypatch, executor, stage: str, on: int) -> None:
    """The `on`-th call of a stage does its work and then finds no memory for the rest of it."""
    work, calls = getattr(executor, stage), []

    def scarce(*arguments):
        calls.append(stage)
        result = work(*arguments)
        if len(calls) == on:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return result

    monkeypatch.setattr(executor, stage, scarce)


def run(llm, requests, fail_at):
    """Requests one after the other while the engine runs -> their sequences, by id"""
    found, waiting = {}, list(requests)
    while waiting or llm.has_work:
        if waiting:
            llm.add(waiting.pop(0))
        try:
            updates = llm.step()
        except torch.OutOfMemoryError:
            updates = llm.recover()
            assert llm.scheduler.idle
            fail_at.append(len(found))
        found |= {update.sequence.id: update.sequence for update in updates if update.finished}
    return [found[i] for i in sorted(found)]


@pytest.mark.parametrize(("model", "stage"), STAGES)
@pytest.mark.parametrize("on", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_who_ran_besides_gets_the_same_tokens(monkeypatch, model, stage, on):
    pipeline = vlm.load(model, runtime=RuntimeConfig("cpu", burst=2, block_size=4))
    check_recovery(monkeypatch, pipeline, stage, on)


def check_recovery(monkeypatch, pipeline, stage: str, on: int) -> None:
    source = {"raw_prompt": PROMPT} if pipeline.family.prompt else {"text": TEXT}
    options = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 1.0}
    requests = [pipeline.request(source, seed=seed, **options) for seed in range(5)]
    expected = [pipeline.generate(source, seed=seed, **options).token_ids for seed in range(5)]
    fails_once(monkeypatch, pipeline.llm.executor, stage, on)
    failures: list[int] = []
    sequences = run(pipeline.llm, requests, failures)
    lost = [sequence.finish_reason == "memory" for sequence in sequences]
    assert len(failures) == 1 and len(sequences) == 5 and any(lost) and not all(lost)
    assert all(lost[i] or sequences[i].generated == expected[i] for i in range(5))
    assert is_empty(pipeline)


def test_a_search_besides_begins_anew(monkeypatch):
    pipeline = vlm.load("mini-t5", runtime=RuntimeConfig("cpu", burst=2))
    options = {"num_beams": 3, "max_new_tokens": 20}
    expected = pipeline.generate(text=TEXT, **options).token_ids
    searching, late = pipeline.request({"text": TEXT}, **options), pipeline.request({"text": "summarize: a b c"})
    fails_once(monkeypatch, pipeline.llm.executor, "admit", 2)
    search, other = run(pipeline.llm, [searching, late], [])
    assert other.finish_reason == "memory" and search.preemptions == 1
    assert pipeline.outputs.output(search).token_ids == expected and is_empty(pipeline)


def test_a_prefix_that_was_not_computed_is_not_shared(monkeypatch):
    pipeline = vlm.load("mini-llava", runtime=RuntimeConfig("cpu", block_size=4))
    ask = lambda: pipeline.request({"raw_prompt": PROMPT}, max_new_tokens=8)  # noqa: E731
    expected = pipeline.generate(raw_prompt=PROMPT, max_new_tokens=8).token_ids
    pipeline.llm.scheduler.blocks.forget()
    with monkeypatch.context() as patch:

        def full(*arguments):
            raise torch.OutOfMemoryError("CUDA out of memory.")

        patch.setattr(pipeline.llm.executor, "prefill", full)
        [lost] = run(pipeline.llm, [ask()], [])
    pipeline.llm.executor.cache.fill_(7.0)
    [found] = run(pipeline.llm, [ask()], [])
    assert lost.finish_reason == "memory" and found.generated == expected


def serving(pipeline, **listeners):
    return AsyncPipeline(pipeline, ImageWorkers(0, MediaLimits()), **listeners)


def test_callers_are_told_and_the_engine_goes_on(monkeypatch):
    pipeline = vlm.load("mini-t5", device="cpu")
    expected = pipeline.generate(text=TEXT).text

    async def ask():
        model = serving(pipeline)
        model.start()
        request = await model.request({"text": TEXT}, [])
        fails_once(monkeypatch, pipeline.llm.executor, "launch", 1)
        with pytest.raises(OutOfMemoryError, match="out of memory while it worked on this request"):
            await model.generate(request)
        [again] = await model.generate(request)
        with pytest.raises(OutOfMemoryError):
            await model.engine.run(no_memory)
        error = model.engine.error
        await model.close()
        return again.text, error

    assert asyncio.run(ask()) == (expected, None) and is_empty(pipeline)


def no_memory():
    raise torch.OutOfMemoryError("CUDA out of memory.")


def test_a_pool_that_is_not_whole_breaks_the_engine(monkeypatch):
    """Better no answer than a wrong one; who looks after the engine hears of it, in the loop's thread."""
    pipeline, heard = vlm.load("mini-t5", device="cpu"), []

    async def ask():
        model = serving(pipeline, on_break=lambda error: heard.append((str(error), threading.current_thread().name)))
        model.start()
        request = await model.request({"text": TEXT}, [])
        pipeline.llm.scheduler.blocks.allocate(1, "self")
        fails_once(monkeypatch, pipeline.llm.executor, "launch", 1)
        with pytest.raises(EngineError, match="not whole"):
            await model.generate(request)
        await model.engine.stop()

    asyncio.run(ask())
    [(text, thread)] = heard
    assert "not whole" in text and thread == "MainThread"
