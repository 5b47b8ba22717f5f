"""The runtime on a GPU: the CPU's tokens in FP32, graphs equal to eager steps, 16-bit logits within tolerance."""

from __future__ import annotations

import pytest
import torch

import vlm
from tests.checkout import ROOT
from tests.kits.models import tiny
from tests.kits.models.engines import pipeline
from tests.parity.image_to_text.test_nougat import RAGGED_SEED, joined
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.requests.image import Image
from vlm.requests.pixels import ImagePixels, Normalization

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
]
EXAMPLES = ROOT / "examples"
LIMITS = [40, 3, 25, 1, 60, 12, 33, 50, 7]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """(engine, images, tokens of each image alone by Hugging Face on the CPU)"""
    model = tiny.nougat(seed=RAGGED_SEED)
    images = tiny.images(model, 9, seed=5)
    want = [t[:n] for t, n in zip(tiny.hf_tokens(model, images, 60), LIMITS, strict=True)]
    pipe = pipeline(model, tmp_path_factory.mktemp("gpu"), RuntimeConfig(device="cpu"), max_batch_size=9)
    return pipe.engine, images, want


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize("burst", [1, 4, 16])
def test_fp32_gives_the_cpus_tokens(case, burst, graphs):
    engine, images, want = case
    pipe = Pipeline(engine, RuntimeConfig(device="cuda", burst=burst, cuda_graphs=graphs, max_batch_size=4))
    assert joined(pipe, images, LIMITS, [0, 0, 1, 2, 2, 2, 3, 5, 8]) == want
    assert joined(pipe, images, LIMITS, [0] * 9) == want, "a used engine answers as a new one"


def test_an_image_has_its_features_in_any_passes(case):
    """Five images are passes of four and of one, whose graphs have one memory."""
    engine, images, _ = case
    eager, graphs = (
        Pipeline(engine, RuntimeConfig(device="cuda", cuda_graphs=with_graphs)) for with_graphs in (False, True)
    )
    images = [Image.from_pixels(image, eager.processor.vision) for image in images]
    want = eager.llm.encoders.encode_pixels(images)
    for count in (1, 4, 5, 9):
        for ours, theirs in zip(graphs.llm.encoders.encode_pixels(images[:count]), want, strict=False):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_preemption(case):
    engine, images, want = case
    cross = 9 * -(-engine.limits.max_encoder_input_len // 8)
    total = cross + engine.limits.max_seq_len // 8
    fraction = cross / total + 1e-9
    pipe = Pipeline(
        engine,
        RuntimeConfig(device="cuda", block_size=8, burst=4, max_kv_blocks=total, cross_kv_cache_fraction=fraction),
    )
    assert joined(pipe, images, LIMITS, [0] * 9) == want
    assert joined.preemptions > 0


def test_levels_are_normalized_on_the_device(case):
    """What worker processes hand on of a page reads as the values that it stands for."""
    engine, images, _ = case
    normalization = Normalization((127.5, 120.0, 110.0), (60.0, 70.0, 80.0))
    levels = [torch.randint(0, 256, image.shape, dtype=torch.uint8) for image in images]
    ours = [ImagePixels.of(each.numpy(), normalization) for each in levels]
    values = [{"pixel_values": normalization(each)} for each in levels]
    options = {"max_new_tokens": 20, "loop_detection": False}
    found = [
        [(out.token_ids, out.cumulative_logprob) for out in Pipeline(engine, RuntimeConfig(device=device)).generate(
            inputs, **options)]
        for device, inputs in (("cuda", ours), ("cuda", values), ("cpu", values))
    ]  # fmt: skip
    assert found[0] == found[1]
    assert [tokens for tokens, _ in found[0]] == [tokens for tokens, _ in found[2]]


def test_sampling_draws_the_cpus_tokens(case):
    engine, images, _ = case
    options = {"temperature": 1.0, "top_k": 20, "top_p": 0.95, "seed": 5, "max_new_tokens": 20, "loop_detection": False}
    inputs = [{"pixel_values": image} for image in images]
    found = [
        [out.token_ids for out in Pipeline(engine, RuntimeConfig(device=device)).generate(inputs, **options)]
        for device in ("cpu", "cuda")
    ]
    assert found[0] == found[1]


def test_controls_choose_the_cpus_tokens(case):
    engine, images, _ = case
    options = {
        "repetition_penalty": 1.3, "presence_penalty": 0.3, "frequency_penalty": 0.2, "min_p": 0.02,
        "no_repeat_ngram_size": 2, "bad_words_ids": [[53], [17, 53]], "min_new_tokens": 9, "max_new_tokens": 20,
    }  # fmt: skip
    inputs = [{"pixel_values": image} for image in images]
    for temperature in (0.0, 0.8):
        found = [
            [out.token_ids for out in Pipeline(engine, RuntimeConfig(device=device)).generate(
                inputs, temperature=temperature, seed=4, loop_detection=False, **options)]
            for device in ("cpu", "cuda")
        ]  # fmt: skip
        assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_packaged_model_reads_its_examples(tmp_path, dtype):
    model = vlm.load("mini-nougat", device="cuda", dtype=dtype, cache_dir=tmp_path)
    paths = [EXAMPLES / f"{name}.png" for name in ("page", "table", "math")]
    for path, out in zip(paths, model.generate(paths), strict=True):
        assert out.text == path.with_suffix(".txt").read_text().strip()


def logits(engine: EngineDir, device: str, image: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Teacher-forced logits [T, vocab] of an image's tokens, through encoder, cache and decoder."""
    pipe = Pipeline(engine, RuntimeConfig(device=device))
    runner = pipe.llm.executor.runner
    captured = []
    original = runner.decoder.logits
    for part in (runner, runner.prompts.passes, runner.cross_kv, runner.cross_kv.passes, pipe.llm.encoders.networks):
        part.graphs = None
    runner.decoder.logits = lambda *rows: captured.append(original(*rows)) or captured[-1]
    for end in range(1, len(tokens) + 1):
        pipe.generate(pixel_values=image, decoder_prompt_token_ids=tokens[:end], max_new_tokens=1)
    return torch.cat([x[:1].float().cpu() for x in captured])


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 4e-2), ("float16", 5e-3)])
def test_16_bit_logits_are_within_tolerance(tmp_path, dtype, tolerance):
    """‖logits - exact‖ / ‖exact‖, where exact is FP32 on the CPU."""
    model = tiny.nougat(
        seed=8, embed_dim=64, depths=(2, 2), heads=(4, 8), layers=4, decoder_heads=4, ffn=512, vocab=900,
        image_size=(96, 64), spread=0.04,
    )  # fmt: skip
    exact_pipe = pipeline(model, tmp_path, RuntimeConfig(device="cpu"))
    from vlm.artifacts.native.checkpoint import Checkpoint

    half = build_engine(Checkpoint.open(tmp_path / "checkpoint"), tmp_path / "half", BuildConfig(dtype=dtype))
    image = tiny.images(model, 1)[0]
    tokens = [0, *range(5, 25)]
    exact = logits(exact_pipe.engine, "cpu", image, tokens)
    found = logits(half, "cuda", image, tokens)
    error = ((found - exact).norm() / exact.norm()).item()
    print(f"{dtype}: relative error {error:.2e}")
    assert error < tolerance
