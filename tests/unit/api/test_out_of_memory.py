"""A step that runs out of memory: its requests are told, the others go on, and the pool is whole."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

import vlm
from tests.checkout import ROOT
from tests.kits.servers.server_kit import alone, is_empty
from vlm.api.async_pipeline import AsyncPipeline
from vlm.backends.graphs.io import BATCH, CACHED, GraphIO, Port
from vlm.config import RuntimeConfig
from vlm.engine.leading import follow
from vlm.errors import ConfigError, EngineError, InputError, OutOfMemoryError
from vlm.executor.memory import is_out_of_memory
from vlm.executor.slots.cache import SlotCache
from vlm.parallel.collectives import OneHost
from vlm.processing.media.pool import MediaConfig, MediaPool
from vlm_app.core.renamed import renamed

TEXT = "translate English to German: The old ship is small."
PROMPT = "USER: Tell me what the sign by the old road says today. ASSISTANT:"
# a T5's prompts are one token long: there is nothing to prefill
STAGES = [("mini-t5", "admit"), ("mini-t5", "launch"), *(("mini-llava", s) for s in ("admit", "prefill", "launch"))]


CUDA = torch.OutOfMemoryError("CUDA out of memory.")
ERRORS = {
    "cuda": CUDA,
    "torch on the cpu": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"
    ),
    "onnxruntime": Exception(
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Failed to allocate memory for requested buffer"
    ),
    "onednn": RuntimeError("could not create a primitive"),
    "c++": RuntimeError("std::bad_alloc"),
    "python": MemoryError(),
    "tensorrt": OutOfMemoryError("TensorRT could not queue the plan's work: Cuda Runtime (out of memory)"),
}


def test_what_onednn_cannot_do_is_no_want_of_memory():
    unsupported = "could not create a primitive descriptor for the linear primitive"
    assert not is_out_of_memory(RuntimeError(unsupported)) and is_out_of_memory(ERRORS["onednn"])


def fails_once(monkeypatch, executor, stage: str, on: int, error: Exception = CUDA) -> None:
    """The `on`-th call of a stage does its work and then finds no memory for the rest of it."""
    work, calls = getattr(executor, stage), []

    def scarce(*arguments, **options):
        calls.append(stage)
        result = work(*arguments, **options)
        if len(calls) == on:
            raise error
        return result

    monkeypatch.setattr(executor, stage, scarce)


def run(llm, requests, fail_at):
    """Requests one after the other while the engine runs -> what they come to, by id"""
    found, waiting = {}, list(requests)
    while waiting or llm.has_work:
        if waiting:
            llm.add([waiting.pop(0)])
        try:
            updates = llm.step()
        except torch.OutOfMemoryError:
            updates = llm.recover()
            assert llm.scheduler.idle
            fail_at.append(len(found))
        found |= {update.request_id: update.completion for update in updates if update.finished}
    return [found[i] for i in sorted(found)]


@pytest.mark.parametrize(("model", "stage"), STAGES)
@pytest.mark.parametrize("on", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_who_ran_besides_gets_the_same_tokens(monkeypatch, model, stage, on):
    pipeline = vlm.load(model, runtime=RuntimeConfig("cpu", burst=2, block_size=4))
    check_recovery(monkeypatch, pipeline, stage, on)


def check_recovery(monkeypatch, pipeline, stage: str, on: int) -> None:
    source = {"raw_prompt": PROMPT} if pipeline.family.chat_format else {"text": TEXT}
    options = {"max_new_tokens": 12, "ignore_eos": True, "temperature": 1.0}
    requests = [pipeline.request(source, seed=seed, **options) for seed in range(5)]
    expected = [pipeline.generate(source, seed=seed, **options).token_ids for seed in range(5)]
    fails_once(monkeypatch, pipeline.llm.executor, stage, on)
    failures: list[int] = []
    completions = run(pipeline.llm, requests, failures)
    lost = [completion.out_of_memory for completion in completions]
    assert len(failures) == 1 and len(completions) == 5 and any(lost) and not all(lost)
    assert all(lost[i] or completions[i].token_ids == expected[i] for i in range(5))
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
    pipeline.llm.scheduler.blocks.reset_prefix_cache()
    with monkeypatch.context() as patch:

        def full(*arguments):
            raise CUDA

        patch.setattr(pipeline.llm.executor, "prefill", full)
        [lost] = run(pipeline.llm, [ask()], [])
    pipeline.llm.executor.runner.cache.blocks.fill_(7.0)
    [found] = run(pipeline.llm, [ask()], [])
    assert lost.finish_reason == "memory" and found.token_ids == expected


def serving(pipeline, **listeners):
    return AsyncPipeline(pipeline, MediaPool(MediaConfig()), **listeners)


@pytest.mark.parametrize("library", ERRORS)
def test_callers_are_told_and_the_engine_goes_on(monkeypatch, library):
    pipeline, no_memory = alone("mini-t5"), raising(ERRORS[library])
    expected = pipeline.generate(text=TEXT).text

    async def ask():
        model = serving(pipeline)
        model.start()
        request = await model.request({"text": TEXT}, [])
        fails_once(monkeypatch, pipeline.llm.executor, "launch", 1, ERRORS[library])
        with pytest.raises(OutOfMemoryError, match="out of memory while it worked on this request"):
            await model.generate(request)
        [again] = await model.generate(request)
        with pytest.raises(OutOfMemoryError):
            await model.engine.run(no_memory)
        monkeypatch.setattr(pipeline.llm.encoders, "encode_texts", no_memory)
        with pytest.raises(OutOfMemoryError, match="send it again later"):
            await model.encode([{"text": TEXT}], [[]])
        error = model.engine.error
        await model.engine.stop()
        return again.text, error

    assert asyncio.run(ask()) == (expected, None) and is_empty(pipeline)


def raising(error: BaseException):
    def fail(*arguments, **options):
        raise error

    return fail


def test_one_input_of_a_job_is_lost(monkeypatch):
    pipeline = alone("mini-t5")
    texts = [f"translate English to German: The {word} ship is small." for word in ("old", "new", "big")]
    expected = [output.text for output in pipeline.generate(texts)]
    fails_once(monkeypatch, pipeline.llm.executor, "admit", 1)
    # several samples of an input: it is lost as a whole, once
    found = dict(pipeline.as_completed(texts, window=1, on_error="yield", temperature=1.0, num_return_sequences=3))
    assert isinstance(found.pop(0), OutOfMemoryError) and len(found) == 2 and is_empty(pipeline)
    fails_once(monkeypatch, pipeline.llm.executor, "launch", 1)
    found = dict(pipeline.as_completed(texts, window=1, on_error="yield"))
    assert isinstance(found[0], OutOfMemoryError) and [found[1].text, found[2].text] == expected[1:]
    for ask in (pipeline.generate, lambda text: list(pipeline.stream(text))):
        fails_once(monkeypatch, pipeline.llm.executor, "launch", 1)
        with pytest.raises(OutOfMemoryError, match="send it again later, or a smaller one"):
            ask(texts[0])
    assert pipeline.generate(texts[0]).text == expected[0] and is_empty(pipeline)


def test_an_image_is_too_much(monkeypatch):
    pipeline = alone("mini-llava")
    monkeypatch.setattr(pipeline.llm.encoders.networks, "encode", raising(ERRORS["torch on the cpu"]))
    source = {"pixel_values": torch.zeros(1, 3, 96, 96), "prompt": "Hi"}
    for ask in (pipeline.generate, lambda _: pipeline.encode({"pixel_values": source["pixel_values"]})):
        with pytest.raises(OutOfMemoryError):
            ask(source)
    assert is_empty(pipeline)


@pytest.mark.parametrize(("model", "source", "stage", "says"), [
    ("mini-t5", {"text": TEXT}, "encode_texts", "it encoded 1 text; lower {0}, or from Python in RuntimeConfig"
     " max_encoder_tokens (tokens at once, now 16384)."),
    ("mini-llava", {"pixel_values": torch.zeros(1, 3, 96, 96), "prompt": "Hi"}, "encode", "it encoded the images of 1"
     " input; lower {0}, or from Python in RuntimeConfig max_encoder_batch_size (images at once, now 8) or"
     " max_encoder_tokens (patches at once, now 16384)."),
])  # fmt: skip
def test_what_was_encoded_and_what_helps_is_told(monkeypatch, model, source, stage, says):
    pipeline = alone(model)
    place = pipeline.llm.executor.runner if stage == "encode_texts" else pipeline.llm.encoders.networks
    monkeypatch.setattr(place, stage, raising(CUDA))
    for ask in (pipeline.generate, lambda source: list(pipeline.stream(source))):
        with pytest.raises(OutOfMemoryError) as caught:
            ask(source)
        assert str(caught.value) == f"cpu ran out of memory while {says.format('max_batch_size')}"
        # at the command line, and there where the option has a name of its own
        for flag in ("--max-batch-size", "--batch-size"):
            sentence = renamed(str(caught.value), caught.value, {"max_batch_size": flag})
            assert sentence == f"cpu ran out of memory while {says.format(flag)}"
    assert is_empty(pipeline)


class Panic(BaseException):
    """As pyo3_runtime.PanicException: no Exception."""


def test_a_panic_of_the_tokenizer_costs_its_request(monkeypatch):
    pipeline = alone("mini-t5")
    pipeline.request({"text": TEXT})  # what is asked of the tokenizer once, with a text of ours, is known from here on

    class Panicking:
        encode = staticmethod(raising(Panic("index out of range")))

    monkeypatch.setattr(pipeline.tokenizer, "_fast", Panicking())
    with pytest.raises(InputError, match="tokenizer cannot read 'translate English to'…: index out of range; change"):
        pipeline.request({"text": TEXT})


def test_a_panic_of_the_engine_is_heard_of(monkeypatch):
    """Its thread does not end in silence, with callers that wait for ever."""
    pipeline = vlm.load("mini-t5", device="cpu")

    async def ask():
        model = serving(pipeline)
        model.start()
        request = await model.request({"text": TEXT}, [])
        with pytest.raises(EngineError, match="worse"):
            await model.engine.run(raising(Panic("worse")))
        monkeypatch.setattr(pipeline.llm.executor, "launch", raising(Panic("index out of range")))
        with pytest.raises(EngineError, match="the engine has broken: index out of range"):
            await model.generate(request)
        await model.engine.stop()

    asyncio.run(ask())


def test_a_cache_that_grew_half_way_begins_again(monkeypatch):
    ports = tuple(Port(name, (BATCH, 2, CACHED, 4), torch.float32) for name in ("self_k_0", "self_v_0"))
    outs = tuple(Port(f"{p.name}_out", p.shape, p.dtype) for p in ports)
    cache = SlotCache(
        GraphIO(ports, outs, {f"{p.name}_out": p.name for p in ports}), 2, {CACHED: 512}, torch.device("cpu")
    )
    assert not cache.reset()
    with monkeypatch.context() as patch:
        made = iter([torch.zeros(2, 2, 224, 4)])
        patch.setattr(cache, "_zeros", lambda port: next(made))
        with pytest.raises(StopIteration):
            cache.reserve(CACHED, 200)
    assert cache.reset() and {x.shape[2] for x in cache.tensors.values()} == {32}
    assert cache.reserve(CACHED, 200) and {x.shape[2] for x in cache.tensors.values()} == {224}


@pytest.mark.parametrize(
    ("limits", "kind", "says"),
    [
        (
            {"max_seq_len": 2**31 - 1},
            OutOfMemoryError,
            "the KV cache of a full batch takes 131,072.0 GiB, more than cpu",
        ),
        (
            {"max_seq_len": 2**31 - 1, "max_batch_size": 2**31 - 1},
            OutOfMemoryError,
            "GiB, more than cpu has free; lower",
        ),
        ({"max_seq_len": 2**31}, ConfigError, "max_seq_len is 2147483648, it must be at most 2147483647"),
    ],
)
def test_a_cache_that_no_machine_holds_is_told_by_its_size(limits, kind, says):
    with pytest.raises(kind, match=says):
        vlm.load("mini-t5", device="cpu", **limits)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space")
@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_a_process_without_memory(backend):
    """A real failure to allocate: it costs the large request, those before and after it are answered the same."""
    if backend == "onnxruntime":
        pytest.importorskip("onnxruntime")
    line = [sys.executable, "-m", "tests.kits.out_of_memory", backend]
    # what malloc has reserved for its threads is no memory that the limit could refuse
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    before, lost, encoding, after, at_large = done.stdout.splitlines()
    assert lost.startswith("OutOfMemoryError: the device ran out of memory") and "send it again later" in lost
    assert encoding in (lost, "4090 rows") and before == after and not at_large.startswith("OutOfMemoryError")


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


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_a_rank_that_follows_says_why_it_ends(error):
    class Hosts(OneHost):
        def broadcast(self, value=None):
            return [("add", (), {}), ("step", (), {})]

    engine = SimpleNamespace(add=raising(InputError("it is refused on all ranks")), step=raising(error))
    with pytest.raises(
        OutOfMemoryError, match="it ran out of memory, and all the others, which wait for it, end with it"
    ) as caught:
        follow(engine, Hosts())
    assert caught.value.settings == ("max_batch_size",)
