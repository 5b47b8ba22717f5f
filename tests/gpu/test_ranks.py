"""Engines that two or four GPUs run: the tokens of one GPU in FP32, 16-bit logits within tolerance, and what ends
them."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from tests.kits.models.families import MODELS, inputs_of
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.errors import EngineError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two CUDA devices are not visible"),
]
CUDA = RuntimeConfig(device="cuda")
MAPPINGS = {"tensor": {"tp_size": 2}, "pipeline": {"pp_size": 2}}
FOUR = {"tensor": {"tp_size": 4}, "pipeline": {"pp_size": 4}, "both": {"tp_size": 2, "pp_size": 2}}
WAYS = {
    "greedy": {"return_generation_logits": True},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"temperature": 0.8, "top_k": 20, "seed": 3, "return_generation_logits": True},
}
KINDS = ("nougat", "gated t5", "bart", "llama", "starcoder", "llava")
DEEP = {  # a layer a stage
    "bart": lambda: tiny.bart(seed=5, encoder_layers=4, decoder_layers=4),
    "llama": lambda: tiny.llama(seed=5, num_hidden_layers=4),
}
EXACT = {"atol": 1e-4, "rtol": 1e-4}
four_gpus = pytest.mark.skipif(torch.cuda.device_count() < 4, reason="four CUDA devices are not visible")


def outputs(engine, runtime: RuntimeConfig = CUDA) -> list:
    """Returns what each way gives for many inputs at once, and for one alone."""
    with closing(Pipeline(engine, runtime)) as pipe:
        many = inputs_of(pipe) * 3
        options = {"max_new_tokens": 8, "ignore_eos": True}
        return [
            out for way in WAYS.values() for given in (many, many[:1]) for out in pipe.generate(given, **options, **way)
        ]


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_gpus_give_the_tokens_of_one(kind, mapping, tmp_path):
    check_tokens(engine_dir(MODELS[kind](), tmp_path, max_batch_size=24), **MAPPINGS[mapping])


@four_gpus
@pytest.mark.parametrize("mapping", FOUR)
@pytest.mark.parametrize("kind", DEEP)
def test_four_gpus_give_the_tokens_of_one(kind, mapping, tmp_path):
    check_tokens(engine_dir(DEEP[kind](), tmp_path, max_batch_size=24), **FOUR[mapping])


def check_tokens(engine, **mapping: int) -> None:
    """Checks that the GPUs of a mapping give the tokens and logits of one, in FP32."""
    expected = outputs(engine, RuntimeConfig(device="cuda:0"))
    found = outputs(rebuilt(engine, max_batch_size=24, **mapping))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.token_ids == theirs.token_ids
        assert [each.token_ids for each in ours.alternatives] == [each.token_ids for each in theirs.alternatives]
        if theirs.generation_logits is not None:
            torch.testing.assert_close(ours.generation_logits, theirs.generation_logits, **EXACT)


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_logits_are_within_tolerance(dtype, mapping, tmp_path):
    """The first token's, whose input is the same: of many rows, which NCCL sums, and of few."""
    check_logits(dtype, tmp_path, **MAPPINGS[mapping])


@four_gpus
@pytest.mark.parametrize("mapping", FOUR)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_logits_of_four_gpus_are_within_tolerance(dtype, mapping, tmp_path):
    check_logits(dtype, tmp_path, num_hidden_layers=4, **FOUR[mapping])


def check_logits(dtype: str, tmp_path, num_hidden_layers: int = 2, **mapping: int) -> None:
    """Checks the first token's logits of the GPUs of a mapping against those of one."""
    model = tiny.llama(
        num_hidden_layers=num_hidden_layers,
        seed=3,
        hidden_size=256,
        intermediate_size=512,
        num_attention_heads=8,
        num_key_value_heads=4,
    )
    engine = engine_dir(model, tmp_path, max_batch_size=32, dtype=dtype)
    lengths = range(80, 112)  # 3,000 rows of 512 bytes: more than a message of 1 MB

    def logits(engine, device: str) -> torch.Tensor:
        with closing(Pipeline(engine, RuntimeConfig(device=device))) as pipe:
            prompts = [{"input_ids": text} for text in tiny.texts(model, lengths)]
            options = {"max_new_tokens": 1, "ignore_eos": True, "return_generation_logits": True}
            found = [*pipe.generate(prompts, **options), *(pipe.generate(each, **options) for each in prompts[:3])]
        return torch.cat([out.generation_logits.float().flatten() for out in found])

    expected = logits(engine, "cuda:0")
    found = logits(rebuilt(engine, max_batch_size=32, dtype=dtype, **mapping), "cuda")
    assert (found - expected).norm() < (0.01 if dtype == "float16" else 0.05) * expected.norm()


@pytest.mark.parametrize("mapping", [*MAPPINGS.values(), pytest.param(FOUR["both"], marks=four_gpus)], ids=str)
def test_a_rank_that_dies_ends_what_waits_for_it(mapping, tmp_path):
    """A GPU would wait for ever: the first rank must find out, say so, and leave the process fit to go on."""
    engine = engine_dir(tiny.llama(seed=3), tmp_path, max_batch_size=8)
    split = rebuilt(engine, max_batch_size=8, **mapping)
    with closing(Pipeline(split, CUDA)) as pipe:
        given = inputs_of(pipe)
        pipe.generate(given, max_new_tokens=8, ignore_eos=True)
        assert pipe._others is not None
        threading.Timer(2.0, pipe._others.processes[0].kill).start()
        with pytest.raises(EngineError, match="another rank has ended or cannot be reached"):
            for _ in range(5000):
                pipe.generate(given, max_new_tokens=40, ignore_eos=True)
    torch.cuda.synchronize()
