"""Two models that serve from one GPU, each in a thread of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import vlm
from tests.e2e.test_serve_load import TIGHT, check

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
