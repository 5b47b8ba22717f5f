"""Networks that ranks split: the tokens of one process, whatever the family, the number of ranks and the way of
choosing."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, method_options, rebuilt
from tests.kits.models.families import MODELS
from tests.kits.rank_cases import (
    CPU,
    FEW_BLOCKS,
    SHORT,
    all_ways,
    check_equal,
    come_and_go,
    encoded,
    image_features,
    of_one_process,
    outputs,
    texts,
)
from tests.kits.ranks import with_followers
from tests.parity.cases import combined
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.build.from_model import convert_model
from vlm.config import BuildConfig
from vlm.errors import ConfigError, EngineError, VlmError
from vlm.executor.encoding.torch_encoders import TorchEncoders
from vlm.layers.quant.methods import METHODS
from vlm.parallel.collectives import ALONE, Ranks
from vlm.registry.catalogs import configs_of

pytestmark = pytest.mark.slow  # every family, twice


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return of_one_process(MODELS, tmp_path_factory)


# one rank a head of queries, whose heads of keys are some of them, one, or as many; towers beside decoders
FOUR_RANKS = ("nougat", "t5", "bart", "llama", "qwen3", "starcoder", "blip2-t5")
SIZES = combined(MODELS, {"2": 2, "3": 3, "4": 4}, always=("2", "3"), quick=FOUR_RANKS)


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_the_tokens_are_those_of_one_process(whole, name, size):
    engine, expected = whole(name)
    if size == 3 and (heads := configs_of(engine)["decoder"].num_kv_heads) < 3:
        with pytest.raises(ConfigError, match=f"4 heads of queries and {heads} of keys cannot be split among 3 ranks"):
            rebuilt(engine, tp_size=size)
        return
    split = rebuilt(engine, max_batch_size=8, tp_size=size)
    assert split.manifest.mapping == {"tp": size, "pp": 1} and split.build.tp_size == size
    check_equal(with_followers(split, CPU, all_ways), expected)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return engine_dir(tiny.t5(seed=1, tied=False), tmp_path_factory.mktemp("t5"), max_batch_size=8)


def test_requests_come_go_and_are_preempted(t5):
    """With a cache so small that sequences wait for each other, in bursts, beams among them, one aborted."""
    expected = come_and_go(Pipeline(rebuilt(t5, **SHORT), FEW_BLOCKS))
    assert with_followers(rebuilt(t5, **SHORT, tp_size=2), FEW_BLOCKS, come_and_go) == expected


@pytest.mark.parametrize("sizes", [{"tp_size": 2}, {"pp_size": 2}], ids=str)
def test_a_seed_that_is_drawn_is_that_of_all_ranks(t5, sizes):
    def draw(pipe: Pipeline) -> list[tuple[int, list[int]]]:
        found = pipe.generate(texts(4), max_new_tokens=12, temperature=1.5, ignore_eos=True)
        return [(out.seed, out.token_ids) for out in found]

    drawn, one = with_followers(rebuilt(t5, max_batch_size=8, **sizes), CPU, draw), Pipeline(t5, CPU)
    for (seed, tokens), text in zip(drawn, texts(4), strict=True):
        again = one.generate(text, max_new_tokens=12, temperature=1.5, ignore_eos=True, seed=seed)
        assert again.token_ids == tokens


def test_a_request_that_is_refused_leaves_the_ranks_together(t5):
    def read(pipe: Pipeline) -> list[int]:
        with pytest.raises(VlmError):
            pipe.generate(encoder_input_ids=[3, 4, 5], max_new_tokens=400)
        return pipe.generate(encoder_input_ids=[3, 4, 5], max_new_tokens=6, ignore_eos=True).token_ids

    expected = read(Pipeline(rebuilt(t5, **SHORT), FEW_BLOCKS))
    assert with_followers(rebuilt(t5, **SHORT, tp_size=2), FEW_BLOCKS, read) == expected


def test_texts_are_encoded_by_all_ranks(t5):
    split = with_followers(rebuilt(t5, tp_size=2), CPU, encoded)
    for ours, theirs in zip(split, encoded(Pipeline(t5, CPU)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sizes", [{"tp_size": 2}, {"pp_size": 2}], ids=str)
def test_ranks_draft_alike(t5, sizes):
    split = rebuilt(t5, max_batch_size=8, **sizes)
    drafting = dataclasses.replace(CPU, num_speculative_tokens=3)
    check_equal(with_followers(split, drafting, all_ways), all_ways(Pipeline(t5, CPU)))


@pytest.mark.parametrize("cached", [True, False])
def test_each_rank_encodes_its_share_of_the_images(tmp_path, monkeypatch, cached):
    engine = engine_dir(tiny.blip2("t5", seed=7, spread=0.4) if cached else tiny.nougat(seed=8), tmp_path)
    passes: list[int] = []
    encode = TorchEncoders.encode
    monkeypatch.setattr(TorchEncoders, "encode", lambda self, x: passes.append(len(x)) or encode(self, x))

    expected = image_features(Pipeline(engine, CPU))
    passes.clear()
    found = with_followers(rebuilt(engine, tp_size=3), CPU, image_features)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    if not cached:
        assert sorted(passes) == [1] * 3 + [2] * 3  # one image by each rank; and five, two by each


@pytest.mark.parametrize("name", ["t5", "llama"])
@pytest.mark.parametrize("sizes", [{"tp_size": 2}, {"tp_size": 2, "pp_size": 2}], ids=str)
def test_a_checkpoint_that_is_split_on_disk(tmp_path, name, sizes):
    engine = engine_dir(MODELS[name](), tmp_path, max_batch_size=8)
    expected = all_ways(Pipeline(engine, CPU))
    checkpoint = Checkpoint.open(convert_model(tmp_path / "checkpoint", tmp_path / "split", **sizes))
    split = build_engine(checkpoint, tmp_path / "ranks", BuildConfig(max_batch_size=8, **sizes), workers=2)
    check_equal(with_followers(split, CPU, all_ways), expected)


@pytest.mark.parametrize("method", METHODS)
def test_quantized_weights_are_split(t5, method):
    """Ranks keep what one process keeps: the same tokens, where rows are not rounded for each rank by itself."""
    options = {"max_batch_size": 8, **method_options(method, 4)}
    expected = outputs(Pipeline(rebuilt(t5, **options), CPU))
    found = with_followers(rebuilt(t5, tp_size=2, **options), CPU, outputs)
    if method.startswith("int"):
        check_equal(found, expected)
    assert [len(tokens) for tokens, *_ in found] == [8, 8]


def test_an_engine_of_other_ranks_is_refused(t5):
    with pytest.raises(EngineError, match=r"is built for 2 ranks, 1 runs it; run it with 2, or build it for 1\."):
        Pipeline(rebuilt(t5, tp_size=2), CPU, ALONE)
    with pytest.raises(EngineError, match=r"is built for 1 rank, 2 run it"):
        Pipeline(t5, CPU, Ranks(0, 2))
    with pytest.raises(ConfigError, match="tp_size is 2, only the backend torch splits networks"):
        rebuilt(t5, backend="onnxruntime", tp_size=2)
    with pytest.raises(ConfigError, match="cannot be split among 8 ranks; run the model on fewer GPUs"):
        rebuilt(t5, tp_size=8)
    with pytest.raises(ConfigError, match="tp_size"):
        rebuilt(t5, tp_size=0)
    with pytest.raises(ConfigError, match="groups of 16 weights do not divide 24 inputs; give group_size 8"):
        rebuilt(t5, tp_size=2, quantization="int4", group_size=16)


@pytest.mark.parametrize(
    ("trouble", "says", "reason"),
    [
        (KeyError("a mistake of ours"), "a call has broken off on the first of several ranks", "a mistake of ours"),
        (torch.OutOfMemoryError("CUDA ran out."), "the first of several ranks ran out of memory", "ran out of memory"),
    ],
)
def test_a_call_that_breaks_off_is_not_waited_for(t5, trouble, says, reason):
    """The others wait amid it: a first rank that stepped again would wait for them in turn."""

    def break_off(**options) -> None:
        raise trouble

    def read(pipe: Pipeline) -> None:
        pipe.llm._engine.step = break_off
        with pytest.raises(EngineError, match=says) as caught:
            pipe.generate(encoder_input_ids=[3, 4, 5], max_new_tokens=6)
        assert reason in repr(caught.value.__context__)
        assert ("max_batch_size" in str(caught.value)) == ("max_batch_size" in caught.value.settings)
        with pytest.raises(EngineError, match=says):
            pipe.generate(encoder_input_ids=[3, 4, 5], max_new_tokens=6)
        raise ZeroDivisionError  # which lets the other rank end

    with pytest.raises(ZeroDivisionError):
        with_followers(rebuilt(t5, tp_size=2), CPU, read)
