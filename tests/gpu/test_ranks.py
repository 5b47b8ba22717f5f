"""Engines that two GPUs run, by tensors and by stages: the tokens of one GPU, with CUDA graphs and without."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from tests.engines import engine_dir, rebuilt
from tests.families import MODELS
from tests.rank_cases import WAYS, check_equal, outputs
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices are visible"),
]


def all_ways(pipe: Pipeline) -> list[list[tuple]]:
    with closing(pipe):
        return [outputs(pipe, **way) for way in (*WAYS.values(), WAYS["greedy"])]  # the last one replays its graphs


@pytest.mark.parametrize("axis", ["tp_size", "pp_size"])
@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("name", ["t5", "mbart", "llama", "llava", "nougat"])
def test_the_tokens_are_those_of_one_gpu(name, graphs, axis, tmp_path):
    runtime = RuntimeConfig(device="cuda", cuda_graphs=graphs)
    engine = engine_dir(MODELS[name](), tmp_path, max_batch_size=8)
    expected = all_ways(Pipeline(engine, runtime))
    found = all_ways(Pipeline(rebuilt(engine, max_batch_size=8, **{axis: 2}), runtime))
    for ours, theirs in zip(found, expected, strict=True):
        check_equal(ours, theirs)
