"""Decoders alone and vision-language models on a GPU: the CPU's tokens in FP32, 16-bit log-probabilities within
tolerance."""

from __future__ import annotations

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
MODELS = {
    "llama": lambda: tiny.llama(seed=3, num_key_value_heads=2),
    "opt": lambda: tiny.opt(seed=2, word_embed_proj_dim=20),
    "starcoder": lambda: tiny.gpt2(seed=1, multi_query=True),
    "llava": lambda: tiny.llava(seed=3),
    "blip2-opt": lambda: tiny.blip2("opt", seed=1),
    "blip2-t5": lambda: tiny.blip2("t5", seed=7, spread=0.4),
}
SETTINGS = [{}, {"num_beams": 4}, {"temperature": 0.8, "seed": 3}, {"num_beams": 2, "length_penalty": 0.3}]


def inputs_of(engine) -> list[dict]:
    """Prompts with no, one and several images (for a decoder alone: rows of tables), one of them ending in a row."""
    pipe = Pipeline(engine, RuntimeConfig(device="cpu"))
    visual, config = pipe.llm.encoders.visual, pipe.config
    key = "encoder_input_ids" if pipe.llm.encoders.encoder else "decoder_prompt_token_ids"
    vocab, rows = config.vocab_size, visual.config.num_features if visual else 6
    generator = torch.Generator().manual_seed(0)
    words = lambda n: torch.randint(3, 58, (n,), generator=generator).tolist()  # noqa: E731
    found = []
    for images, ids in (
        (0, words(40)), (1, [*range(vocab, vocab + rows), *words(5)]), (0, words(1)),
        (2, [*words(9), *range(vocab, vocab + 2 * rows), *words(20)]), (1, [*words(3), *range(vocab, vocab + rows)]),
    ):  # fmt: skip
        given: dict = {key: ids}
        if images and visual:
            given["pixel_values"] = torch.randn(images, 3, *visual.config.image_size, generator=generator)
        elif images:
            given["prompt_table"] = torch.randn(images * rows, config.embedding_size, generator=generator)
        found.append(given)
    return found


@pytest.fixture(scope="module", params=MODELS)
def subject(request, tmp_path_factory):
    engine = engine_dir(MODELS[request.param](), tmp_path_factory.mktemp("gpu"), max_batch_size=12, max_seq_len=120)
    inputs = inputs_of(engine)
    pipe = Pipeline(engine, RuntimeConfig(device="cpu"))
    want = [[out.token_ids for out in pipe.generate(inputs, max_new_tokens=20, **options)] for options in SETTINGS]
    return engine, inputs, want


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cuda_graphs": False, "burst": 4},
        {"max_prefill_tokens": 7, "burst": 1},
        {"block_size": 8, "max_batch_size": 5},
    ],
    ids=str,
)
def test_tokens_equal_the_cpus(subject, options):
    engine, inputs, want = subject
    pipe = Pipeline(engine, RuntimeConfig(device="cuda", **options))
    for _ in range(2):  # the second time beginnings and images are known
        for setting, tokens in zip(SETTINGS, want, strict=True):
            found = [out.token_ids for out in pipe.generate(inputs, max_new_tokens=20, **setting)]
            assert found == tokens, setting
    assert pipe.llm.scheduler.blocks.balanced


@pytest.mark.parametrize("runtime", [{}, {"max_prefill_tokens": 40, "block_size": 16}], ids=str)
def test_prompts_are_scored_as_on_the_cpu(tmp_path, runtime):
    """Beside prompts that ask for no scores, whose passes are captured."""
    model = tiny.llama(seed=3, num_key_value_heads=2, max_position_embeddings=400)
    engine, prompts = engine_dir(model, tmp_path), tiny.prompts(model, (300, 70, 7, 64, 129, 1))
    found = []
    for device in ("cpu", "cuda"):
        pipe, done = Pipeline(engine, RuntimeConfig(device=device, **runtime)), []
        for wanted in (range(0), range(0, 6, 2), range(6)):  # none: the pass is a graph by then
            settings = [{"prompt_logprobs": 3} if i in wanted else {} for i in range(len(prompts))]
            requests = [
                pipe.request({"decoder_prompt_token_ids": ids}, max_new_tokens=9, **own)
                for ids, own in zip(prompts, settings, strict=True)
            ]
            done += pipe.complete(requests)
        found.append(done)
    for ours, theirs in zip(*found, strict=True):
        assert ours.token_ids == theirs.token_ids and (ours.prompt is None) == (theirs.prompt is None)
        for a, b in zip(ours.prompt.logprobs[1:], theirs.prompt.logprobs[1:], strict=True) if ours.prompt else ():
            assert list(a) == list(b)
            torch.testing.assert_close(torch.tensor([*a.values()]), torch.tensor([*b.values()]), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 6e-2), ("float16", 8e-3)])
@pytest.mark.parametrize("heads", [1, 4, 8])
def test_16_bit_log_probabilities_are_within_tolerance(tmp_path, heads, dtype, tolerance):
    """Root mean square difference of the five likeliest tokens' log-probabilities from FP32's on the CPU, of prompts
    longer than a tile."""
    model = tiny.llama(seed=1, spread=0.03, vocab_size=900, hidden_size=512, intermediate_size=700,
                       num_attention_heads=8, num_key_value_heads=heads, max_position_embeddings=300)  # fmt: skip
    exact_engine = engine_dir(model, tmp_path)
    half = rebuilt(exact_engine, dtype=dtype)
    inputs = [{"decoder_prompt_token_ids": ids} for ids in tiny.prompts(model, (200, 70, 7, 64, 129, 1))]
    found = []
    for engine, device in ((exact_engine, "cpu"), (half, "cuda")):
        outputs = Pipeline(engine, RuntimeConfig(device=device)).generate(inputs, max_new_tokens=1, top_logprobs=5)
        found.append(torch.tensor([sorted(out.top_logprobs[0].values()) for out in outputs]))
    error = (found[1] - found[0]).square().mean().sqrt().item()
    print(f"{heads} heads of keys, {dtype}: {error:.2e}")
    assert error < tolerance
