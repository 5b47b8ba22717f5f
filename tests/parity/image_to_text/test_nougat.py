"""Nougat against Hugging Face, FP32 on the CPU: the same tokens, whatever a request is batched with."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, pipeline
from tests.parity.cases import parity
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.errors import VlmWarning
from vlm.requests.image import Image
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams

SHAPES = {
    "plain": {},
    "untied": {"tied": False, "layers": 1},
    "one stage": {"depths": (3,), "heads": (4,), "embed_dim": 32, "image_size": (40, 56), "window": 5},
    "three stages, padded windows": {"depths": (2, 1, 3), "heads": (1, 2, 4), "embed_dim": 8, "image_size": (88, 72)},
    "odd grid, window 7": {"image_size": (100, 76), "window": 7, "depths": (1, 2), "layers": 3, "decoder_heads": 2},
    "unscaled embedding, relu": {"scale_embedding": False, "activation": "relu", "ffn": 20, "vocab": 200},
}


def cpu(**options) -> RuntimeConfig:
    return RuntimeConfig(device="cpu", **options)


@pytest.mark.parametrize("case", parity({"nougat": SHAPES}))
def test_tokens_and_log_probabilities(case, tmp_path):
    model = tiny.nougat(seed=3, spread=0.15, **case.make)
    images = tiny.images(model, 5)
    want = tiny.hf_tokens(model, images, 24)
    pipe = pipeline(model, tmp_path)
    assert pipe.family.name == case.family
    inputs = [{"pixel_values": image} for image in images]
    found = pipe.generate(inputs, max_new_tokens=24, loop_detection=False)
    assert [out.token_ids for out in found] == want
    for image, out in zip(images, found, strict=True):
        ids = torch.tensor([[0, *out.token_ids]])
        with torch.no_grad():
            logits = model(pixel_values=image[None], decoder_input_ids=ids[:, :-1]).logits
        exact = logits.log_softmax(-1)[0].gather(1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(out.logprobs), exact, atol=1e-4, rtol=0)


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    """A model, nine images, and their tokens under nine different limits; some end by themselves."""
    model = tiny.nougat(seed=RAGGED_SEED)
    images, limits = tiny.images(model, 9, seed=5), [40, 3, 25, 1, 60, 12, 33, 50, 7]
    longest = tiny.hf_tokens(model, images, 60)
    want = [tokens[:limit] for tokens, limit in zip(longest, limits, strict=True)]
    return engine_dir(model, tmp_path_factory.mktemp("ragged"), max_batch_size=9), images, limits, want


RAGGED_SEED = 2


def test_the_ragged_case_is_one(ragged):
    *_, limits, want = ragged
    assert any(len(tokens) < limit for tokens, limit in zip(want, limits, strict=True)), "no end token is reached"
    assert len({len(tokens) for tokens in want}) > 5


def joined(pipe: Pipeline, images, limits, arrivals) -> list[list[int]]:
    """Tokens per image when image i is added after `arrivals[i]` steps; also asserts that the pool is full again."""
    ids, found, turn = {}, {}, 0
    while len(found) < len(images):
        for i, arrival in enumerate(arrivals):
            if arrival == turn:
                params = SamplingParams(max_new_tokens=limits[i])
                ids[
                    pipe.llm.add([Request((0,), Image.from_pixels(images[i], pipe.processor.vision), params=params)])[0]
                ] = i
        for update in pipe.llm.step():
            if update.finished:
                found[ids[update.request_id]] = update.completion
        turn += 1
    assert pipe.llm.scheduler.blocks.balanced
    joined.preemptions = sum(s.preemptions for s in found.values())
    return [found[i].token_ids for i in range(len(images))]


@pytest.mark.parametrize("block_size", [8, 16])
@pytest.mark.parametrize("burst", [1, 4, 16])
def test_any_mix_of_one_to_nine_gives_the_tokens_of_one(ragged, burst, block_size):
    engine, images, limits, want = ragged
    pipe = Pipeline(engine, cpu(burst=burst, block_size=block_size))
    for count in (1, 2, 5, 9):
        assert joined(pipe, images[:count], limits, [0] * count) == want[:count]


@pytest.mark.parametrize("burst", [1, 4, 16])
def test_sequences_that_join_mid_flight(ragged, burst):
    engine, images, limits, want = ragged
    pipe = Pipeline(engine, cpu(burst=burst, max_batch_size=4, max_encoder_batch_size=2))
    assert joined(pipe, images, limits, [0, 1, 1, 2, 3, 3, 3, 5, 8]) == want


@pytest.mark.parametrize("burst", [1, 4, 16])
@pytest.mark.parametrize("block_size", [8, 16])
def test_forced_preemption(ragged, burst, block_size):
    engine, images, limits, want = ragged
    rows = engine.limits.max_encoder_input_len
    cross = 9 * -(-rows // block_size)
    # room for one sequence of full length: nine cannot stay
    self_blocks = engine.limits.max_seq_len // block_size
    total = cross + self_blocks
    pipe = Pipeline(
        engine,
        cpu(burst=burst, block_size=block_size, max_kv_blocks=total, cross_kv_cache_fraction=cross / total + 1e-9),
    )
    assert joined(pipe, images, limits, [0] * 9) == want
    assert joined.preemptions > 0


def test_generation_settings_that_are_not_applied_are_said(tmp_path, recwarn):
    model = tiny.nougat()
    pipeline(model, tmp_path / "plain")
    assert not [w for w in recwarn if "not applied" in str(w.message)]
    own = model.generation_config
    own.suppress_tokens, own.do_sample, own.num_beams, own.guidance_scale, own.max_time = [5], True, 2, 1.5, 9.0
    with pytest.warns(VlmWarning, match=r"max_time 9.0, guidance_scale 1.5, do_sample True of beams are not applied"):
        pipeline(model, tmp_path / "other")


CONTROLS = [
    {},
    {"repetition_penalty": 1.5},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[17], [53, 52], [3]]},
    {"min_new_tokens": 14},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "bad_words_ids": [[50]], "min_new_tokens": 4},
    {"no_repeat_ngram_size": 1},
]


def test_controls_of_each_request_in_one_batch(ragged):
    """Different settings side by side give each request Hugging Face's tokens for its own."""
    engine, images, *_ = ragged
    model, pipe = tiny.nougat(seed=RAGGED_SEED), Pipeline(engine, cpu(burst=4))
    want = [tiny.hf_tokens(model, images[i : i + 1], 30, **given)[0] for i, given in enumerate(CONTROLS)]
    ids, found = {}, {}
    for i, given in enumerate(CONTROLS):
        words = tuple(tuple(word) for word in given.get("bad_words_ids", ()))
        params = SamplingParams(max_new_tokens=30, **{**given, "bad_words_ids": words})
        ids[pipe.llm.add([Request((0,), Image.from_pixels(images[i], pipe.processor.vision), params=params)])[0]] = i
    while pipe.llm.has_work:
        found |= {ids[u.request_id]: u.completion.token_ids for u in pipe.llm.step() if u.finished}
    assert [found[i] for i in range(len(CONTROLS))] == want
    assert len({tuple(tokens) for tokens in want}) == len(CONTROLS)


def test_the_models_own_settings_are_defaults(tmp_path):
    model = tiny.nougat(seed=RAGGED_SEED)
    model.generation_config.repetition_penalty, model.generation_config.bad_words_ids = 1.4, [[53]]
    images = tiny.images(model, 2)
    pipe = pipeline(model, tmp_path)
    found = pipe.generate([{"pixel_values": i} for i in images], max_new_tokens=20, loop_detection=False)
    assert [out.token_ids for out in found] == tiny.hf_tokens(model, images, 20)
    free = pipe.generate(pixel_values=images[0], max_new_tokens=20, repetition_penalty=1.0, bad_words_ids=())
    model.generation_config.repetition_penalty, model.generation_config.bad_words_ids = None, None
    assert free.token_ids == tiny.hf_tokens(model, images[:1], 20)[0]


def test_forced_end_token(tmp_path):
    model = tiny.nougat(seed=3)
    model.generation_config.forced_eos_token_id = 2
    images = tiny.images(model, 3)
    want = tiny.hf_tokens(model, images, 9)
    assert any(len(tokens) == 9 and tokens[-1] == 2 for tokens in want)
    found = pipeline(model, tmp_path).generate([{"pixel_values": i} for i in images], max_new_tokens=9)
    assert [out.token_ids for out in found] == want


def test_a_decoder_prefix(ragged, tmp_path):
    engine, images, *_ = ragged
    pipe = Pipeline(engine, cpu(block_size=8))
    model = tiny.nougat(seed=RAGGED_SEED)
    prefixes = [[0], [0, 7, 9], [0, *range(3, 30)], [4]]
    want = []
    for image, prefix in zip(images, prefixes, strict=False):
        with torch.no_grad():
            out = model.generate(pixel_values=image[None], decoder_input_ids=torch.tensor([prefix]), max_new_tokens=9)
        ids = out[0].tolist()
        want.append(ids[ids.index(prefix[0]) + len(prefix) :][:9] if ids[: len(prefix)] == prefix else None)
    inputs = [
        {"pixel_values": image, "decoder_prompt_token_ids": prefix}
        for image, prefix in zip(images, prefixes, strict=False)
    ]
    found = [out.token_ids for out in pipe.generate(inputs, max_new_tokens=9, loop_detection=False)]
    assert found == want


def test_sampling_is_reproducible_alone_and_in_any_batch(ragged):
    engine, images, *_ = ragged
    pipe = Pipeline(engine, cpu(burst=4))
    options = {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "max_new_tokens": 20, "loop_detection": False}
    alone = [pipe.generate(pixel_values=image, seed=11, **options).token_ids for image in images]
    inputs = [{"pixel_values": image} for image in images]
    assert [out.token_ids for out in pipe.generate(inputs, seed=11, **options)] == alone
    other = [out.token_ids for out in pipe.generate(inputs, seed=12, **options)]
    assert other != alone
    unseeded = pipe.generate(pixel_values=images[0], **options)
    assert pipe.generate(pixel_values=images[0], seed=unseeded.seed, **options).token_ids == unseeded.token_ids
