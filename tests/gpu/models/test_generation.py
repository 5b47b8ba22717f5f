"""Every processor on a GPU, within graphs: the CPU's tokens, as the tables of rules and of end tokens grow."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.parity.generation.test_generation import EVERY, decoded, inputs_of
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
# few rules, then many; few end tokens, then more than a search's kernel takes; none again
ROUNDS = (
    [{"suppress_tokens": [5]}] * 2 + list(EVERY.values())[:4],
    list(EVERY.values()),
    [{"eos_token_id": list(range(2, 42)), "min_new_tokens": 3}, {}, {"num_beams": 8, "eos_token_id": list(range(40))}],
    [{}] * 3,
)


@pytest.fixture(scope="module", params=["mbart", "llama"])
def subject(request, tmp_path_factory):
    model = tiny.bart(seed=4, multilingual=True) if request.param == "mbart" else tiny.llama(seed=1)
    return model, engine_dir(model, tmp_path_factory.mktemp("settings"), max_batch_size=24)


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("beams", [1, 3])
def test_every_processor_gives_the_cpus_tokens(subject, beams, graphs):
    model, engine = subject
    on_cpu = Pipeline(engine, RuntimeConfig(device="cpu", block_size=8, max_batch_size=9))
    on_gpu = Pipeline(engine, RuntimeConfig(device="cuda", block_size=8, max_batch_size=9, cuda_graphs=graphs))
    for settings in ROUNDS:
        settings = [{"num_beams": beams, **given} for given in settings]
        inputs = inputs_of(model)[: len(settings)]
        want, found = (decoded(pipe, model, inputs, settings) for pipe in (on_cpu, on_gpu))
        for out, expected, given in zip(found, want, settings, strict=True):
            ends = given.get("forced_eos_token_id", ()) if beams > 1 else ()  # all are as good to a search
            last = len(expected.token_ids) - (expected.token_ids[-1] in ends)
            assert out.token_ids[:last] == expected.token_ids[:last]
            assert len(out.token_ids) == len(expected.token_ids) and set(out.token_ids[last:]) <= set(ends)


@pytest.mark.parametrize(
    "filters",
    [
        [{}, {"typical_p": 0.6}, {"epsilon_cutoff": 0.02}, {"eta_cutoff": 0.05}, {"top_h": 0.5}, {"top_k": 5}],
        [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.8}, {"temperature": 0.0}],
    ],
    ids=["by_entropy", "plain"],
)
@pytest.mark.parametrize("processed", [{}, {"suppress_tokens": [9]}, {"repetition_penalty": 1.2}], ids=str)
def test_draws_are_the_cpus(subject, filters, processed):
    model, engine = subject
    settings = [{"temperature": 1.2, "seed": 7, **processed, **given} for given in filters]
    inputs = inputs_of(model)[: len(settings)]
    found = [
        [out.token_ids for out in decoded(Pipeline(engine, RuntimeConfig(device=on)), model, inputs, settings)]
        for on in ("cpu", "cuda")
    ]
    assert found[0] == found[1]
