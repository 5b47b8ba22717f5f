"""What passes and steps do as graphs: over inputs at one address, of the shapes and sizes that their key says."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor

from tests.kits.models.engines import engine_dir
from tests.kits.models.families import MODELS, inputs_of
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.executor import graph_pool
from vlm.executor.graph_pool import GraphPool


class Replayed:
    """Stands where a GraphPool does: runs again what a graph would hold."""

    def __init__(self) -> None:
        self.passes: dict[tuple, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {}

    def __contains__(self, key: tuple) -> bool:
        return key in self.passes

    def replay(self, key: tuple, function: Callable[..., Any], *inputs: Tensor) -> Any:
        if key not in self:
            self.capture(key, function, *inputs)
        return self.run(key, *inputs)

    def run(self, key: tuple, *inputs: Tensor) -> Any:
        function, static = self.passes[key]
        for target, source in zip(static, inputs, strict=True):
            assert target.shape == source.shape
            target.copy_(source)
        return function(*static)

    def capture(self, key: tuple, function: Callable[..., Any], *inputs: Tensor) -> None:
        self.passes[key] = function, tuple(x.clone() for x in inputs)
        function(*self.passes[key][1])


class Graph:
    """Writes a number where all graphs of a pool write."""

    def __init__(self, memory: Tensor, number: float) -> None:
        self.memory, self.number = memory, number

    def replay(self) -> None:
        self.memory.fill_(self.number)


def test_what_a_graph_gives_stays_when_another_one_runs():
    pool, memory = object.__new__(GraphPool), torch.zeros(3)
    pool._graphs = {(n,): (Graph(memory, n), (), memory, list) for n in (1, 2)}
    pool._graphs["nothing",] = Graph(memory, 3), (), None, list
    first, second = pool.run((1,)), pool.run((2,))
    assert pool.run(("nothing",)) is None
    assert (first.tolist(), second.tolist()) == ([1.0] * 3, [2.0] * 3)


def test_the_graph_that_was_not_used_for_longest_gives_way(monkeypatch):
    pool, memory = object.__new__(GraphPool), torch.zeros(3)
    pool.device, pool._stream, pool._graphs = memory.device, MagicMock(), {}
    monkeypatch.setattr(graph_pool, "MOST_GRAPHS", 2)
    monkeypatch.setattr(graph_pool.torch, "cuda", MagicMock())
    monkeypatch.setattr(GraphPool, "_capturing", lambda self, graph: nullcontext())
    for key in ("first",), ("second",), ("first",), ("third",):
        pool.replay(key, lambda: memory)
    assert list(pool._graphs) == [("first",), ("third",)]


def images_last(pipe: Pipeline, inputs: list[dict]) -> list[dict]:
    """The same inputs, of prompts that end in the rows of their image, where one may."""
    if pipe.processor.vision is None:
        return []
    rows = range(pipe.config.vocab_size, pipe.config.vocab_size + pipe.processor.vision.num_features)
    return [given | {pipe.capabilities.id_field: [7, 9, *rows]} for given in inputs]


@pytest.mark.parametrize("options", [{}, {"max_prefill_tokens": 7, "block_size": 4}, {"max_batch_size": 3}], ids=str)
@pytest.mark.parametrize("name", ["llama", "llava", "mbart"])
def test_tokens_are_those_of_eager_passes(name, options, tmp_path):
    """Twice: the second time graphs are there, and what of prompts is known has none."""
    engine = engine_dir(MODELS[name](), tmp_path, max_batch_size=9)
    eager = Pipeline(engine, RuntimeConfig(device="cpu"))
    inputs = inputs_of(eager)
    inputs += images_last(eager, inputs)
    pipe, pool = Pipeline(engine, RuntimeConfig(device="cpu", burst=4, **options)), Replayed()
    runner = pipe.llm.executor.runner
    for part in (runner, runner.prompts.passes, runner.cross_kv, runner.cross_kv.passes):
        part.graphs = pool
    for settings in ({}, {"temperature": 0.9, "seed": 4, "repetition_penalty": 1.2}, {"num_beams": 2}):
        want, *found = (
            [out.token_ids for out in each.generate(inputs, max_new_tokens=12, ignore_eos=True, **settings)]
            for each in (eager, pipe, pipe)
        )
        assert found == [want, want]
    kinds = {key[0] for key in pool.passes}
    assert kinds == ({"encode texts", "decode"} if name == "mbart" else {"prefill", "append first", "decode"})
