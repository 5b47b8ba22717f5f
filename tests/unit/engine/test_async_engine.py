"""The engine's thread: what crosses to and from it, and what becomes of callers when it stops or breaks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref

import pytest
import torch

import vlm
from tests.kits.servers.server_kit import is_empty, until
from vlm.api.async_pipeline import AsyncPipeline
from vlm.engine.async_call import AsyncCall
from vlm.engine.fair_lock import FairLock
from vlm.errors import EngineError, InputError, LimitError
from vlm.processing.media.pool import MediaConfig, MediaPool
from vlm.requests.request import Request
from vlm.requests.token_update import TokenUpdate

TEXT = "translate English to German: The old ship is small."
SAMPLES = {"num_return_sequences": 2, "temperature": 1.0, "seed": 1}
SETTINGS = [{"stop": "i", "top_logprobs": 2}, SAMPLES, {"num_beams": 2}]


@pytest.fixture(scope="module")
def t5():
    return vlm.load("mini-t5", device="cpu")


@contextlib.asynccontextmanager
async def running(pipeline, **options):
    model = AsyncPipeline(pipeline, MediaPool(MediaConfig()), **options)
    model.start()
    try:
        yield model
    finally:
        await model.engine.stop()
        assert is_empty(pipeline)


def test_updates_add_up_to_the_output(t5):
    async def ask():
        async with running(t5) as model:
            request = await model.request({"text": TEXT}, [], top_logprobs=2)
            return [update async for _, update in model.engine.generate([request])]

    updates, expected = asyncio.run(ask()), t5.generate(text=TEXT)
    assert [token for update in updates for token in update.token_ids] == expected.token_ids
    assert [x for update in updates for x in update.logprobs] == pytest.approx(expected.logprobs, abs=1e-5)
    assert all(len(update.top_logprobs) == len(update.token_ids) for update in updates)
    assert [update.finished for update in updates] == [False] * (len(updates) - 1) + [True]
    assert updates[-1].completion.token_ids == expected.token_ids


def test_inputs_may_stand_bare(t5):
    """As `Pipeline.encode` and `Pipeline.generate` take them; what is no request, and no list, is told."""

    async def ask():
        async with running(t5) as model:
            encodings = await model.encode([TEXT, {"text": TEXT}], hidden_states=True)
            with pytest.raises(InputError, match="encoded as a list, got str; give"):
                await model.encode(TEXT)
            with pytest.raises(InputError, match="2 inputs and the files of 1 were given; give a list of files for"):
                await model.encode([TEXT, TEXT], [[]])
            with pytest.raises(InputError, match="a Request is what is generated from, got str; make the request of"):
                await model.generate(TEXT)
            return encodings, await model.generate(await model.request(TEXT))

    encodings, [output] = asyncio.run(ask())
    expected = t5.encode(TEXT, hidden_states=True)
    for encoding in encodings:
        assert encoding.token_ids == expected.token_ids
        for found, want in zip(encoding.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(found, want, atol=1e-4, rtol=1e-4)
    assert output.text == t5.generate(TEXT).text


def test_an_engine_that_has_nothing_to_do_holds_no_requests(t5):
    class Watched(Request):
        """It may be referred to weakly."""

    async def ask():
        async with running(t5) as model:
            request = await model.request({"text": TEXT}, [])
            request = Watched(request.decoder_prompt_token_ids, encoder_input_ids=request.encoder_input_ids)
            gone = weakref.ref(request)
            assert len([update async for update in model.engine.generate([request])]) > 1
            del request
            await asyncio.to_thread(until, lambda: gc.collect() >= 0 and gone() is None)  # the engine's thread rests

    asyncio.run(ask())


@pytest.mark.parametrize("settings", SETTINGS)
def test_who_asks_for_whole_outputs_is_told_of_each_once(t5, settings):
    """And its listener of every step."""

    async def ask():
        async with running(t5) as model:
            request, seen = await model.request({"text": TEXT}, [], **settings), []
            listen = {"on_update": lambda index, update: seen.append((index, update))}
            whole = [delta async for delta in model.stream(request, final_only=True, **listen)]
            return whole, seen, [delta async for delta in model.stream(request)]

    whole, seen, pieces = asyncio.run(ask())
    assert len({delta.index for delta in whole}) == len(whole)
    for delta in whole:
        steps = [each.update for each in pieces if each.index == delta.index and each.update]
        listened = [update for index, update in seen if index == delta.index]
        assert "".join(each.text for each in pieces if each.index == delta.index) == delta.text == delta.output.raw_text
        for name in ("token_ids", "logprobs", "top_logprobs"):
            everything = list(getattr(delta.update, name))
            assert everything == [x for update in steps for x in getattr(update, name)]
            assert everything == [x for update in listened for x in getattr(update, name)]


def test_who_is_behind_is_told_in_one_piece(t5):
    """Two requests of one call, whose steps all end before anybody asks what they brought."""

    async def ask():
        async with running(t5) as model:
            requests = [await model.request({"text": text}, [], top_logprobs=2) for text in (TEXT, TEXT + " Go.")]
            updates = model.engine.generate(requests)
            told = [await anext(updates)]
            await asyncio.to_thread(until, lambda: is_empty(t5))
            return told + [update async for update in updates]

    updates = asyncio.run(ask())
    assert len(updates) <= 4  # what was there at the first time, and the rest of each
    for index, text in enumerate((TEXT, TEXT + " Go.")):
        own, expected = [update for number, update in updates if number == index], t5.generate(text=text)
        assert [token for update in own for token in update.token_ids] == expected.token_ids
        assert sum(len(update.logprobs) for update in own) == sum(len(update.top_logprobs) for update in own)
        assert own[-1].completion.token_ids == expected.token_ids


def test_an_exception_comes_after_what_came_before_it():
    update = TokenUpdate(7, (1,), (-0.5,), (), 1.0, None)

    async def ask():
        call = AsyncCall(indices={7: 0})
        for each in (update, update._replace(token_ids=(2, 3), logprobs=(-1.0, -2.0), time=2.0)):
            call.results.put_nowait(call.result_of(each))
        call.results.put_nowait(EngineError("it has stopped."))
        told = await call.updates()
        with pytest.raises(EngineError, match="stopped"):
            await call.updates()
        return told

    assert asyncio.run(ask()) == {0: TokenUpdate(7, (1, 2, 3), (-0.5, -1.0, -2.0), (), 2.0, None)}


def test_what_cannot_be_held_is_told_its_caller_and_nobody_else(t5):
    async def ask():
        async with running(t5) as model:
            good = await model.request({"text": TEXT}, [])
            bad = await model.request({"text": TEXT}, [], max_new_tokens=10**6)
            waiting = asyncio.create_task(model.generate(good))
            with pytest.raises(LimitError, match="built for"):
                await model.generate(bad)
            return await waiting

    assert asyncio.run(ask())[0].text == t5.generate(text=TEXT).text


def test_an_engine_is_started_once_before_it_is_asked(t5):
    async def ask():
        model = AsyncPipeline(t5, MediaPool(MediaConfig()))
        request = await model.request({"text": TEXT}, [])
        with pytest.raises(EngineError, match=r"not started; call start\(\) first"):
            await model.generate(request)
        await model.engine.stop()  # of which there is nothing to stop
        model.start()
        with pytest.raises(EngineError, match="is started once"):
            model.start()
        [output] = await model.generate(request)
        await model.engine.stop()
        with pytest.raises(EngineError, match="is started once"):
            model.start()
        return output.text

    assert asyncio.run(ask()) == t5.generate(text=TEXT).text


def test_a_block_starts_and_closes_a_pipeline():
    async def ask():
        async with AsyncPipeline(vlm.load("mini-t5", device="cpu")) as model:
            [output] = await model.generate(request := await model.request({"text": TEXT}))
        with pytest.raises(EngineError, match="the engine has stopped"):
            await model.generate(request)
        with pytest.raises(ZeroDivisionError):
            async with AsyncPipeline(vlm.load("mini-t5", device="cpu")) as model:
                raise ZeroDivisionError
        with pytest.raises(InputError, match="this pipeline is closed"):
            model.pipeline.generate(TEXT)
        return output.text

    assert asyncio.run(ask()) == vlm.load("mini-t5", device="cpu").generate(TEXT).text


def test_who_asks_in_another_loop_is_told_so(t5):
    """Its answers would go to the one that has closed: it waited for ever."""
    model = AsyncPipeline(t5, MediaPool(MediaConfig()))

    async def ask(first: bool):
        request = await model.request({"text": TEXT}, [])
        if first:
            model.start()
            return await model.generate(request)
        with pytest.raises(EngineError, match=r"the event loop in which start\(\) was called; ask it in that one"):
            await model.generate(request)
        await model.engine.stop()

    [output] = asyncio.run(ask(first=True))
    asyncio.run(ask(first=False))
    assert output.text == t5.generate(text=TEXT).text


def test_a_pipeline_that_serves_is_not_called_besides(t5):
    """Each would take updates of the other's requests: both got texts with pieces left out."""

    async def ask():
        async with running(t5) as model:
            for call in (lambda: t5.generate(text=TEXT), lambda: next(t5.stream(text=TEXT))):
                with pytest.raises(InputError, match=r"another thread is using this pipeline.* ask an Async"):
                    call()
            with pytest.raises(InputError, match="another AsyncPipeline has this pipeline; ask that one, or load"):
                AsyncPipeline(t5, model.media).start()
            return await model.generate(await model.request({"text": TEXT}, []))

    assert asyncio.run(ask())[0].text == t5.generate(text=TEXT).text


def test_what_a_listener_raises_is_its_callers_alone(t5):
    def fail(index, update):
        raise ZeroDivisionError

    async def ask():
        async with running(t5) as model:
            request = await model.request({"text": TEXT}, [])
            waiting = asyncio.create_task(model.generate(request))
            with pytest.raises(ZeroDivisionError):
                [delta async for delta in model.stream(request, on_update=fail)]
            return await waiting

    assert asyncio.run(ask())[0].text == t5.generate(text=TEXT).text


def test_a_stopped_engine_tells_who_waits_and_who_comes(t5):
    async def ask():
        async with running(t5) as model:
            request = await model.request({"text": TEXT}, [], ignore_eos=True, loop_detection=False)
            stream = model.stream(request)
            await anext(stream)
            await model.engine.stop()
            with pytest.raises(EngineError, match=r"^the engine is stopping; ask again"):
                async for _ in stream:
                    pass
            with pytest.raises(EngineError, match="has stopped; load the model again"):
                await model.generate(request)

    asyncio.run(ask())


def test_an_engine_holds_its_device_to_its_last_step(t5, monkeypatch):
    """Another one may capture a graph there, beside which nobody may allocate."""
    lock, step, steps = threading.Lock(), t5.llm.step, []

    def watched(**options):
        steps.append(lock.locked())
        return step(**options)

    async def ask():
        async with running(t5) as model:
            model.engine._device_lock = lock
            stream = model.stream(await model.request({"text": TEXT}, [], ignore_eos=True, loop_detection=False))
            await anext(stream)
            monkeypatch.setattr(t5.llm, "step", watched)
            await model.engine.stop()

    asyncio.run(ask())
    assert steps and all(steps)


def test_a_last_step_that_does_not_end_is_left_behind(t5, monkeypatch):
    begun, released = threading.Event(), threading.Event()

    def hang(**options):
        begun.set()
        released.wait(60)
        return []

    async def ask():
        model = AsyncPipeline(t5, MediaPool(MediaConfig()), step_seconds=0.2)
        model.start()
        stream = model.stream(await model.request({"text": TEXT}, [], ignore_eos=True, loop_detection=False))
        await anext(stream)
        abort = t5.llm.abort  # which comes when all are ended
        with monkeypatch.context() as patch:
            patch.setattr(t5.llm, "abort", lambda number: (abort(number), patch.setattr(t5.llm, "step", hang)))
            await asyncio.wait_for(model.engine.stop(), 30)
        assert begun.is_set() and model.engine.hangs
        released.set()
        model.engine._thread.join()

    asyncio.run(ask())
    t5.llm.step()
    assert is_empty(t5)


def test_a_broken_engine_is_not_silent(t5, monkeypatch):
    def broken(**options):
        raise RuntimeError("device lost")

    async def ask():
        async with running(t5) as model:
            request = await model.request({"text": TEXT}, [])
            with monkeypatch.context() as patch:
                patch.setattr(t5.llm, "step", broken)
                with pytest.raises(EngineError, match="has broken: RuntimeError; ask again later") as told:
                    await model.generate(request)
            # what it says, which may be of another request, stands in the log
            assert isinstance(model.engine.error, RuntimeError) and told.value.__cause__ is model.engine.error
            with pytest.raises(EngineError):
                await model.generate(request)
            t5.llm.abort(max(t5.llm._sequences.by_id))
            t5.llm.step()

    asyncio.run(ask())


def test_a_step_that_does_not_end_breaks_the_engine(t5, monkeypatch):
    """Who waits is told, and who comes; nobody waits for the thread."""
    begun, released, broken = threading.Event(), threading.Event(), []

    def hang(**options):
        begun.set()
        released.wait()
        return []

    async def ask():
        model = AsyncPipeline(t5, MediaPool(MediaConfig()), step_seconds=0.2, on_break=broken.append)
        model.start()
        request = await model.request({"text": TEXT}, [])
        with monkeypatch.context() as patch:
            patch.setattr(t5.llm, "step", hang)
            calls = [asyncio.create_task(model.generate(request))]
            await asyncio.to_thread(begun.wait)
            calls.append(asyncio.create_task(model.engine.run(lambda: 1)))
            for call in calls:
                with pytest.raises(EngineError, match=r"has broken: a step has taken longer than 0\.2 s, so its"):
                    await call
            with pytest.raises(EngineError, match="has stopped"):
                await model.generate(request)
            await model.close()
            assert broken == [model.engine.error] and model.engine._thread.is_alive()
            released.set()
            model.engine._thread.join()
        assert broken == [model.engine.error]

    asyncio.run(ask())
    t5.llm.abort(max(t5.llm._sequences.by_id))
    t5.llm.step()
    assert is_empty(t5)


def test_functions_run_in_the_engines_thread(t5):
    async def ask():
        async with running(t5) as model:
            with pytest.raises(ZeroDivisionError):
                await model.engine.run(lambda: 1 / 0)
            return await model.engine.run(threading.current_thread)

    assert asyncio.run(ask()).name == "engine"


def test_every_end_is_reported_once(t5):
    ended = []

    async def ask():
        async with running(t5, on_end=ended.append) as model:
            requests = [await model.request({"text": TEXT}, []) for _ in range(11)]
            streams = [model.stream(request) for request in requests]
            for stream in streams[:3]:
                await anext(stream)
                await stream.aclose()
            await asyncio.gather(*(model.generate(request) for request in requests[3:]))

    asyncio.run(ask())
    assert len(ended) == len({id(completion) for completion in ended}) == 11
    assert {completion.finish_reason for completion in ended[3:]} <= {"eos", "abort"}


def test_turns_go_to_who_has_waited_longest():
    lock, order = FairLock(), []

    def work(name: int) -> None:
        with lock:
            order.append(name)

    with lock:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(5)]
        for waiting, thread in enumerate(threads, 2):
            thread.start()
            until(lambda waiting=waiting: lock._next_ticket == waiting)
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
