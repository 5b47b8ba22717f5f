"""Networks that ranks split: the tokens of one process, whatever the family, the number of ranks and the way of
choosing."""

from __future__ import annotations

import contextlib

import pytest
import torch

from tests import tiny
from tests.engines import engine_dir, method_options, rebuilt
from tests.families import MODELS, inputs_of
from tests.ranks import with_followers
from vlm.api.pipeline import Pipeline
from vlm.config import RuntimeConfig
from vlm.errors import ConfigError, EngineError, InputError, VlmError
from vlm.executor.torch_encoders import TorchEncoders
from vlm.layers.quant.methods import METHODS
from vlm.parallel.collectives import ALONE, Ranks
from vlm.registry.catalogs import configs_of

CPU = RuntimeConfig(device="cpu")
SHORT = {"max_batch_size": 8, "max_seq_len": 48, "max_encoder_input_len": 16}
FEW_BLOCKS = RuntimeConfig(device="cpu", block_size=4, max_kv_blocks=48, burst=3)  # for a fourth of a full batch
WAYS = {
    "greedy": {},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "sampling": {"temperature": 0.8, "top_k": 20, "seed": 3, "repetition_penalty": 1.3},
}


@pytest.fixture(scope="module", params=MODELS)
def engine(request, tmp_path_factory):
    return engine_dir(MODELS[request.param](), tmp_path_factory.mktemp("whole"), max_batch_size=8)


def outputs(pipe: Pipeline, **options) -> list[tuple]:
    """Returns of each input its tokens, those of other hypotheses, and logits, which a search gives none of."""
    kind = {"max_new_tokens": 8, "ignore_eos": True, "return_generation_logits": "num_beams" not in options}
    found = pipe.generate(inputs_of(pipe), **kind, **options)
    return [(out.token_ids, [each.token_ids for each in out.alternatives], out.generation_logits) for out in found]


def check_equal(found: list[tuple], expected: list[tuple]) -> None:
    for (*tokens, logits), (*their_tokens, their_logits) in zip(found, expected, strict=True):
        assert tokens == their_tokens
        if logits is not None:
            torch.testing.assert_close(logits, their_logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_tokens_are_those_of_one_process(engine, size):
    expected = [outputs(Pipeline(engine, CPU), **way) for way in WAYS.values()]
    if size == 3 and (heads := configs_of(engine)["decoder"].num_kv_heads) < 3:
        with pytest.raises(ConfigError, match=f"4 heads of queries and {heads} of keys cannot be split among 3 ranks"):
            rebuilt(engine, tp_size=size)
        return
    split = rebuilt(engine, max_batch_size=8, tp_size=size)
    assert split.manifest.mapping == {"tp": size, "pp": 1} and split.build.tp_size == size
    found = with_followers(split, CPU, lambda pipe: [outputs(pipe, **way) for way in WAYS.values()])
    for ours, theirs in zip(found, expected, strict=True):
        check_equal(ours, theirs)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return engine_dir(tiny.t5(seed=1, tied=False), tmp_path_factory.mktemp("t5"), max_batch_size=8)


def texts(count: int) -> list[dict]:
    generator = torch.Generator().manual_seed(1)
    return [
        {"encoder_input_ids": torch.randint(3, 58, (3 + n % 7,), generator=generator).tolist()} for n in range(count)
    ]


def test_requests_come_go_and_are_preempted(t5):
    """With a cache so small that sequences wait for each other, in bursts, beams among them, one aborted."""

    def read(pipe: Pipeline) -> list[list[int]]:
        width = lambda n: {"num_beams": 2} if n % 3 == 0 else {}  # noqa: E731
        requests = [
            pipe.request(text, max_new_tokens=12 + n, ignore_eos=True, **width(n)) for n, text in enumerate(texts(10))
        ]
        ids, completions = pipe.loop.add(requests), {}
        for _ in range(2):
            pipe.loop.step()
        pipe.loop.abort(ids[4:5])
        while pipe.loop.has_work:
            completions |= {u.request_id: u.completion for u in pipe.loop.step() if u.completion is not None}
        return [list(completions[each].token_ids) for each in ids if each != ids[4]]

    expected = read(Pipeline(rebuilt(t5, **SHORT), FEW_BLOCKS))
    assert with_followers(rebuilt(t5, **SHORT, tp_size=2), FEW_BLOCKS, read) == expected


def test_a_request_that_is_refused_leaves_the_ranks_together(t5):
    def read(pipe: Pipeline) -> list[int]:
        with pytest.raises(VlmError):
            pipe.generate(encoder_input_ids=[3, 4, 5], max_new_tokens=400)
        return pipe.generate(encoder_input_ids=[3, 4, 5], max_new_tokens=6, ignore_eos=True).token_ids

    expected = read(Pipeline(rebuilt(t5, **SHORT), FEW_BLOCKS))
    assert with_followers(rebuilt(t5, **SHORT, tp_size=2), FEW_BLOCKS, read) == expected


def test_texts_are_encoded_by_all_ranks(t5):
    def read(pipe: Pipeline):
        with (
            pytest.raises(InputError, match="attention weights are given by a model that runs on one GPU")
            if (pipe.engine.build.tp_size > 1)
            else contextlib.nullcontext()
        ):
            pipe.encode([{"encoder_input_ids": [3, 4, 5]}], attentions=True)
        [found] = pipe.encode([{"encoder_input_ids": [3, 4, 5, 6]}], hidden_states=True)
        return [found.last_hidden_state, *found.hidden_states]

    split = with_followers(rebuilt(t5, tp_size=2), CPU, read)
    for ours, theirs in zip(split, read(Pipeline(t5, CPU)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("cached", [True, False])
def test_each_rank_encodes_its_share_of_the_images(tmp_path, monkeypatch, cached):
    engine = engine_dir(tiny.blip2("t5", seed=7, spread=0.4) if cached else tiny.nougat(seed=8), tmp_path)
    passes: list[int] = []
    encode = TorchEncoders.encode
    monkeypatch.setattr(TorchEncoders, "encode", lambda self, x: passes.append(len(x)) or encode(self, x))

    def read(pipe: Pipeline) -> list[torch.Tensor]:
        vision = pipe.processor.vision
        generator = torch.Generator().manual_seed(0)
        pixels = [torch.randn(vision.num_channels, *vision.image_size, generator=generator) for _ in range(5)]
        many = pipe.encode([{"pixel_values": each} for each in pixels])
        one = pipe.encode({"pixel_values": pixels[3]})
        return [each.last_hidden_state for each in (*many, one)]

    expected = read(Pipeline(engine, CPU))
    passes.clear()
    found = with_followers(rebuilt(engine, tp_size=3), CPU, read)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    if not cached:
        assert sorted(passes) == [1] * 3 + [2] * 3  # one image by each rank; and five, two by each


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
    with pytest.raises(ConfigError, match="groups of 16 weights do not divide 24 inputs; build with group_size 8"):
        rebuilt(t5, tp_size=2, quantization="int4", group_size=16)
