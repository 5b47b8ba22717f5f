"""Warming up: every size of batch is decoded, and the engine is as it was."""

from __future__ import annotations

import pytest
import torch

import vlm
from tests.kits.servers.server_kit import EXAMPLES, is_empty
from vlm.api.pipeline import Pipeline
from vlm.api.warm_up import warm_up
from vlm.config import RuntimeConfig
from vlm.executor.sampling.sampler import Sampler

SOURCES = {
    "mini-t5": {"text": "summarize: The old ship is small."},
    "mini-llava": {"images": [EXAMPLES / "scene1.png"], "prompt": "Read the sign."},
    "mini-nougat": {"images": [EXAMPLES / "page.png"]},
}


def launched(pipeline, monkeypatch) -> set[tuple[int, bool, int]]:
    """(rows, are they sampled?, drafts) of every burst, as they come"""
    seen, launch = set(), pipeline.llm.executor.launch

    def noted(sequences, steps, drafts, **options):
        seen.add((len(sequences), any(s.request.params.temperature > 0 for s in sequences), drafts))
        return launch(sequences, steps, drafts, **options)

    monkeypatch.setattr(pipeline.llm.executor, "launch", noted)
    return seen


def made_up(monkeypatch) -> list[dict]:
    """Returns the inputs that are made up, as they come."""
    met, request = [], Pipeline.request
    noted = lambda self, source, **more: met.append(source) or request(self, source, **more)  # noqa: E731
    monkeypatch.setattr(Pipeline, "request", noted)
    return met


def test_no_two_made_up_inputs_are_alike(monkeypatch):
    """Else a later size would find its images and prompts kept, and warm up nothing of what reads them."""
    pipeline, met = vlm.load("mini-llava", device="cpu", max_batch_size=3), made_up(monkeypatch)
    warm_up(pipeline)
    assert len(met) == 2 * (1 + 2 + 3) + 1  # which is penalized
    assert len({source["pixel_values"].sum().item() for source in met}) == len(met)
    assert len({source["prompt"] for source in met}) == len(met)


@pytest.mark.parametrize(("model", "most"), [("mini-llava", 2), ("mini-t5", 3)])
def test_images_are_made_for_one_pass_alone(monkeypatch, model, most):
    """A server of 256 at once would make up thousands of them."""
    runtime = RuntimeConfig(device="cpu", max_batch_size=3, max_encoder_batch_size=2)
    pipeline, met = vlm.load(model, runtime=runtime), made_up(monkeypatch)
    seen = launched(pipeline, monkeypatch)
    warm_up(pipeline)
    assert len(met) == 2 * (1 + 2 + most) + 1 and {size for size, _, _ in seen} == {1, 2, 3}


@pytest.mark.parametrize("model", ["mini-t5", "mini-llava", pytest.param("mini-nougat", marks=pytest.mark.slow)])
def test_every_size_is_decoded_and_nothing_stays(model, monkeypatch):
    pipeline = vlm.load(model, device="cpu", max_batch_size=3)
    expected = pipeline.generate(SOURCES[model], max_new_tokens=6).token_ids
    seen, steps = launched(pipeline, monkeypatch), []
    warm_up(pipeline, lambda what, done, total: steps.append((done, total)))
    assert seen == {(size, sampled, 0) for size in (1, 2, 3) for sampled in (False, True)}
    assert steps == [(0, 3), (1, 3), (2, 3)] and is_empty(pipeline)
    assert pipeline.generate(SOURCES[model], max_new_tokens=6).token_ids == expected


def test_penalties_are_met_before_anybody_asks_for_them(monkeypatch):
    pipeline = vlm.load("mini-t5", device="cpu", max_batch_size=3)
    plans, sample = [], Sampler.sample
    monkeypatch.setattr(Sampler, "sample", lambda self, *given: plans.append(given[2]) or sample(self, *given))
    warm_up(pipeline)
    assert {plan.single for plan in plans} == {"greedy", "sample", "process"}


def test_steps_with_drafts_and_without(monkeypatch):
    pipeline = vlm.load("mini-t5", runtime=RuntimeConfig(device="cpu", max_batch_size=2, num_speculative_tokens=3))
    seen = launched(pipeline, monkeypatch)
    warm_up(pipeline)
    assert seen == {(size, sampled, drafts) for size in (1, 2) for sampled in (False, True) for drafts in (0, 3)}


def test_what_does_not_fit_is_left_out(monkeypatch):
    """Too small an engine; too little memory for a batch of two."""
    short = vlm.load("mini-t5", device="cpu", max_encoder_input_len=8)
    seen = launched(short, monkeypatch)
    warm_up(short)
    assert seen == set() and is_empty(short)
    full = vlm.load("mini-t5", device="cpu")
    launch = full.llm.executor.launch

    def scarce(sequences, steps, drafts, **options):
        if len(sequences) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return launch(sequences, steps, drafts, **options)

    monkeypatch.setattr(full.llm.executor, "launch", scarce)
    warm_up(full)
    assert is_empty(full) and full.generate(SOURCES["mini-t5"]).text
