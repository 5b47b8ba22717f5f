"""Caches of 8 bits: logits near those of a cache as it is, and tokens that depend on nothing else."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from tests.parity.generation.test_batch_invariance import inputs_of
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig

MODELS = {
    "nougat": lambda: tiny.nougat(seed=8, vocab=1900),
    "t5": lambda: tiny.t5(seed=1, vocab_size=1900),
    "bart": lambda: tiny.bart(seed=5, vocab_size=1900, max_position_embeddings=120),
    "llama": lambda: tiny.llama(seed=3, vocab_size=1900, num_key_value_heads=2),
    "starcoder": lambda: tiny.gpt2(seed=1, vocab_size=1900, multi_query=True),
    "llava": lambda: tiny.llava(seed=3, text={"vocab_size": 1900}),
}
OPTIONS = ({}, {"num_beams": 3})


@pytest.fixture(scope="module", params=MODELS)
def engine(request, tmp_path_factory):
    return engine_dir(MODELS[request.param](), tmp_path_factory.mktemp("kv"), max_batch_size=9)


def pipeline(engine, **runtime) -> Pipeline:
    return Pipeline(engine, RuntimeConfig(device="cpu", **runtime))


@pytest.mark.parametrize(("dtype", "tolerance"), [("int8", 0.02), ("fp8", 0.12)])
def test_logits_are_near_those_of_a_cache_as_it_is(engine, dtype, tolerance):
    exact, kept = pipeline(engine), pipeline(engine, kv_cache_dtype=dtype)
    inputs, options = inputs_of(exact), {"max_new_tokens": 1, "ignore_eos": True, "return_generation_logits": True}
    pairs = [[pipe.generate(each, **options).generation_logits for pipe in (exact, kept)] for each in inputs]
    errors = [((ours - theirs).norm() / theirs.norm()).item() for theirs, ours in pairs]
    assert max(errors) > 0 and sorted(errors)[len(errors) // 2] < tolerance, errors
    memory = [pipe.llm.executor.runner.cache.blocks.nbytes for pipe in (exact, kept)]
    assert memory[1] < 0.45 * memory[0], "a number has 8 bits of 32, and a scale a token and head"


@pytest.mark.parametrize("dtype", ["int8", "fp8"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_tokens_depend_on_nothing_else(engine, dtype, options):
    """Company, block size, preemption, beams that share blocks, beginnings that are known."""
    pipe = pipeline(engine, kv_cache_dtype=dtype)
    inputs, limits = inputs_of(pipe)[:5], {"max_new_tokens": 12, "ignore_eos": True, **options}
    want = [pipe.generate(each, **limits).token_ids for each in inputs]
    for runtime in ({}, {"block_size": 4, "burst": 3, "max_batch_size": 6}, {"max_prefill_tokens": 7}):
        other = pipeline(engine, kv_cache_dtype=dtype, **runtime)
        for _ in range(2):
            assert [out.token_ids for out in other.generate(inputs, **limits)] == want
        assert other.llm.scheduler.blocks.balanced


def test_bytes_of_both_sides_of_a_block(engine):
    cache = pipeline(engine, kv_cache_dtype="int8").llm.executor.runner.cache
    kv = cache.layer(0)
    kv.key_scales[3], kv.keys[3] = 2.0, 5
    assert (kv.keys[2] == 0).all() and (kv.key_scales[4] == 0).all() and (kv.values[3] == 0).all()
    cache.blocks[:, :, 7] = cache.blocks[:, :, 3]  # as beams copy blocks
    assert (kv.keys[7] == 5).all() and (kv.key_scales[7] == 2.0).all() and torch.isfinite(kv.value_scales).all()
