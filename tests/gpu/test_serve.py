"""What a server needs of a GPU: two models at once, each in a thread of its own; its memory's end; warm engines."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest
import torch

pytest.importorskip("fastapi", reason="needs pip install 'vlm-runtime[serve]'")
pytest.importorskip("uvicorn", reason="needs pip install 'vlm-runtime[serve]'")
pytest.importorskip("openai", reason="openai's client asks the server")

import vlm
from tests.e2e.server.test_serve_load import TIGHT, check
from tests.kits.servers.server_kit import EXAMPLES, is_empty
from tests.unit.api.test_out_of_memory import PROMPT, STAGES, TEXT, check_recovery, serving
from vlm.api.warm_up import warm_up
from vlm.config import RuntimeConfig
from vlm.errors import OutOfMemoryError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]


@pytest.fixture(autouse=True)
def exact_float32():
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def test_streams_on_a_gpu_are_those_of_batch_one():
    load = lambda name, **more: vlm.load(name, device="cuda", dtype="float32", **more)  # noqa: E731
    tight = replace(TIGHT, device="cuda")
    pipelines = {"mini-t5": load("mini-t5"), "mini-llava": load("mini-llava", runtime=tight)}
    check(pipelines, {name: load(name) for name in pipelines}, 60)


@pytest.mark.parametrize(("model", "stage"), STAGES)
def test_a_step_without_memory_costs_its_own_requests(monkeypatch, model, stage):
    runtime = RuntimeConfig("cuda", burst=2, block_size=4)
    check_recovery(monkeypatch, vlm.load(model, runtime=runtime, dtype="float32"), stage, 3)


def test_a_full_device_is_told_and_serves_on():
    """Memory that somebody else took: the first request finds none for its graph, the next one does."""
    pipeline = vlm.load(
        "mini-llava", device="cuda", runtime=RuntimeConfig("cuda", kv_cache_free_gpu_memory_fraction=0.1)
    )
    expected = vlm.load("mini-llava", device="cuda").generate(raw_prompt=PROMPT, max_new_tokens=8).token_ids

    async def ask():
        model = serving(pipeline)
        model.start()
        long = await model.request({"raw_prompt": PROMPT * 20}, [], max_new_tokens=8)
        with taken(), pytest.raises(OutOfMemoryError, match="out of memory"):
            await model.generate(long)
        request = await model.request({"raw_prompt": PROMPT}, [], max_new_tokens=8)
        [output] = await model.generate(request)
        await model.close()
        return output.token_ids, model.engine.error

    assert asyncio.run(ask()) == (expected, None) and is_empty(pipeline)


@contextlib.contextmanager
def taken():
    """All but nothing of the GPU's memory is somebody else's."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved() / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(before)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_a_warm_engine_captures_nothing_for_the_usual_requests(monkeypatch):
    for model in ("mini-t5", "mini-llava", "mini-nougat"):
        pipeline = vlm.load(model, device="cuda")
        warm_up(pipeline)
        captured = set(pipeline.llm.executor.runner.graphs._graphs)
        sizes = {key[1] for key in captured if key[0] == "decode"}
        assert sizes == {1, 2, 4, 8} and is_empty(pipeline)
        source = {"text": TEXT} if model == "mini-t5" else {"images": [EXAMPLES / "page.png"]}
        pipeline.generate([source] * 4, max_new_tokens=8)
        new = {key for key in set(pipeline.llm.executor.runner.graphs._graphs) - captured if key[0] == "decode"}
        assert not new, (model, new)
