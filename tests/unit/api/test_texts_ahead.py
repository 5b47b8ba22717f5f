"""Texts that are encoded while others of a call are prepared."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.kits.servers.server_kit import is_empty
from vlm.api.ahead.texts_ahead import TextsAhead
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.errors import LimitError, OutOfMemoryError

TEXTS = tiny.texts(tiny.bart(), [9, 4, 12, 7, 3, 10, 5])


@pytest.fixture(scope="module")
def bart(tmp_path_factory) -> Any:
    engine = engine_dir(tiny.bart(), tmp_path_factory.mktemp("bart"), max_batch_size=5)
    return Pipeline(engine, RuntimeConfig(device="cpu"))


@pytest.fixture
def recorded(bart, monkeypatch) -> Callable[[], list[str]]:
    """Has texts begun ahead by passes of 15 tokens; returns what was called since it was asked last."""
    calls: list[str] = []
    engine, runner = bart.llm, bart.llm.executor.runner
    for owner, name in ((engine, "add"), (engine, "admit"), (engine, "step"), (runner, "encode_texts")):
        call = getattr(owner, name)
        monkeypatch.setattr(
            owner,
            name,
            lambda *args, name=name, call=call, **options: calls.append(name) or call(*args, **options),
        )
    monkeypatch.setattr(TextsAhead, "of", lambda loop: TextsAhead(loop, 15))

    def taken() -> list[str]:
        own, calls[:] = list(calls), []
        return own

    return taken


def inputs(*prompt: int) -> list[dict[str, Any]]:
    return [
        {"encoder_input_ids": text} | ({"decoder_prompt_token_ids": list(prompt)} if prompt else {}) for text in TEXTS
    ]


def test_the_first_pass_begins_before_the_last_text_is_there(bart, recorded):
    bart.generate([{"encoder_input_ids": TEXTS[0][:5]} for _ in range(5)], max_new_tokens=1)
    begun = ["admit", "encode_texts"]
    # by what a task prepares: two texts, and of the last one
    assert recorded()[:8] == ["add", *begun, "add", "add", *begun, "step"]


def test_the_last_pass_begins_before_the_step_is_planned_and_no_garbage_is_collected_till_then(
    bart, recorded, monkeypatch
):
    enabled, add = [], bart.llm.add
    monkeypatch.setattr(bart.llm, "add", lambda requests: enabled.append(gc.isenabled()) or add(requests))
    bart.generate([{"encoder_input_ids": TEXTS[0][:5]} for _ in range(3)], max_new_tokens=1)
    assert recorded()[:8] == ["add", "admit", "encode_texts", "add", "add", "admit", "encode_texts", "step"]
    assert not any(enabled) and gc.isenabled()


def test_garbage_is_collected_while_an_input_is_long_in_coming(bart):
    """Of a source that blocks, and of a Future: an idle engine may wait for them for hours."""
    enabled, awaited = [], Future()

    def source() -> Iterator[Any]:
        for text in TEXTS:
            enabled.append(gc.isenabled())
            yield {"encoder_input_ids": text}
        threading.Timer(0.2, arrive).start()
        yield awaited

    def arrive() -> None:
        enabled.append(gc.isenabled())
        awaited.set_result({"encoder_input_ids": TEXTS[0]})

    assert len([*bart.as_completed(source(), window=1, max_new_tokens=1)]) == len(TEXTS) + 1
    assert len(enabled) == len(TEXTS) + 1 and all(enabled) and gc.isenabled()


@pytest.mark.parametrize("prompt", [(), (2, 7, 9)])
@pytest.mark.parametrize("settings", [{}, {"num_beams": 2}, {"num_return_sequences": 2, "temperature": 1.0, "seed": 3}])
def test_outputs_are_the_same(bart, monkeypatch, prompt, settings):
    """Of more texts than run at once, too, and of prompts that are to be computed."""
    generate = lambda: [out.token_ids for out in bart.generate(inputs(*prompt), max_new_tokens=6, **settings)]  # noqa: E731
    want = generate()
    monkeypatch.setattr(TextsAhead, "of", lambda loop: TextsAhead(loop, 15))
    assert generate() == want and is_empty(bart)


def test_one_that_is_refused_holds_up_no_other(bart, recorded):
    refused = {"encoder_input_ids": [10**6]}
    results = dict(bart.as_completed([*inputs()[:2], refused, *inputs()[2:4]], on_error="yield", max_new_tokens=2))
    assert isinstance(results.pop(2), LimitError) and len(results) == 4 and "admit" in recorded()


def test_where_memory_runs_out_those_are_lost_that_were_begun_with(bart, recorded, monkeypatch):
    encode, passes = bart.llm.executor.runner.encode_texts, []

    def run_out(*args: Any) -> None:
        passes.append(args)
        if len(passes) == 1:
            raise MemoryError
        encode(*args)

    monkeypatch.setattr(bart.llm.executor.runner, "encode_texts", run_out)
    results = dict(bart.as_completed(inputs(), on_error="yield", max_new_tokens=2))
    lost = [each for each in results.values() if isinstance(each, Exception)]
    assert len(results) == len(TEXTS) and 0 < len(lost) < len(TEXTS) and is_empty(bart)
    assert all(isinstance(each, OutOfMemoryError) for each in lost)


def test_an_engine_without_a_device_of_its_own_has_none_ahead(bart):
    assert TextsAhead.of(bart.loop) is None


def test_who_is_gone_before_its_slot_is_filled_leaves_it_to_the_next(bart):
    """Slots are filled once prompts are on their way: what was admitted ahead may have ended by then."""
    engine, settings = bart.llm, {"max_new_tokens": 6, "ignore_eos": True}
    first, second = ([bart.request(each, **settings) for each in inputs()[i : i + 5]] for i in (0, 1))
    want = [completion.token_ids for completion in bart.complete(second)]
    gone = bart.loop.add(first)  # as many as run at once
    engine.admit()
    assert set(engine.executor._placed) == set(engine.scheduler.running) and len(gone) == 5
    bart.loop.abort(gone)
    assert [completion.token_ids for completion in bart.complete(second)] == want
    assert not engine.executor._placed and is_empty(bart)


def test_who_has_ended_is_freed_beside_the_next_burst(bart, monkeypatch):
    """To free a full batch takes about as long as to admit one, for which an idle device would wait."""
    engine, kept, launch = bart.llm, [], bart.llm.executor.launch
    bart.generate(inputs()[:3], max_new_tokens=2)
    monkeypatch.setattr(
        engine.executor, "launch", lambda *args, **kw: kept.append(len(engine._sequences.ended)) or launch(*args, **kw)
    )
    bart.generate(inputs()[:2], max_new_tokens=2)
    assert kept[0] >= 3 and len(engine._sequences.ended) == 2
