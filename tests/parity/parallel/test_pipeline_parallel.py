"""Networks whose layers the stages of a pipeline share: the tokens of one process, whatever the family, the number of
stages and the way of choosing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, method_options, rebuilt
from tests.kits.models.families import MODELS, inputs_of
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
)
from tests.kits.ranks import with_followers
from tests.parity.cases import combined
from tests.parity.vision_language.test_vila import Vila
from vlm.api.model.cache_bytes import CacheBytes
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.config import RuntimeConfig
from vlm.errors import ConfigError, EngineError
from vlm.executor.encoding.torch_encoders import TorchEncoders
from vlm.executor.inputs import micro_batches
from vlm.executor.paged import prefill
from vlm.executor.paged import runner as paged_runner
from vlm.layers.quant.methods import METHODS
from vlm.parallel.collectives import ALONE

pytestmark = pytest.mark.slow

CHUNKS = RuntimeConfig(device="cpu", block_size=4, max_prefill_tokens=6, burst=3)
NORMS_AFTER = {"do_layer_norm_before": False, "word_embed_proj_dim": 20}
FAMILIES = MODELS | {
    "opt-350m": lambda: tiny.opt(seed=2, **NORMS_AFTER),
    "vila": lambda: SimpleNamespace(save_pretrained=Vila(True, "mlp_downsample", seed=1).write),
}
# stages of several layers, and of different numbers of them; encoders of other numbers than decoders
DEEP = {
    "t5": lambda: tiny.t5(seed=1, tied=False, num_layers=3, num_decoder_layers=5),
    "tied t5": lambda: tiny.t5(seed=1, num_layers=4, num_decoder_layers=3),
    "mbart": lambda: tiny.bart(seed=3, multilingual=True, encoder_layers=3, decoder_layers=4),
    "opt-350m": lambda: tiny.opt(seed=2, num_hidden_layers=4, **NORMS_AFTER),
    "llama": lambda: tiny.llama(seed=3, num_key_value_heads=2, num_hidden_layers=5),
    "gpt2": lambda: tiny.gpt2(seed=1, n_layer=3, scale_attn_by_inverse_layer_idx=True),
}


def check_all_ways(engine: EngineDir, **sizes: int) -> None:
    split = rebuilt(engine, max_batch_size=8, **sizes)
    check_equal(with_followers(split, CPU, all_ways), all_ways(Pipeline(engine, CPU)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return of_one_process(FAMILIES, tmp_path_factory)


# stages of two ranks: relative positions, scaled embeddings, shared heads of keys, projected embeddings, towers
OF_TWO_RANKS = ("t5", "mbart", "llama", "starcoder", "opt-350m", "florence2", "vila")
SIZES = combined(FAMILIES, {"1": 1, "2": 2}, always=("1",), quick=OF_TWO_RANKS)


@pytest.mark.parametrize(("name", "tp_size"), SIZES)
def test_the_tokens_are_those_of_one_process(whole, name, tp_size):
    engine, expected = whole(name)
    split = rebuilt(engine, max_batch_size=8, tp_size=tp_size, pp_size=2)
    check_equal(with_followers(split, CPU, all_ways), expected)


@pytest.mark.parametrize("name", DEEP)
def test_three_stages(name, tmp_path):
    engine = engine_dir(DEEP[name](), tmp_path, max_batch_size=8)
    check_all_ways(engine, pp_size=3)


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    return engine_dir(DEEP["t5"](), tmp_path_factory.mktemp("t5"), max_batch_size=8)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return engine_dir(DEEP["llama"](), tmp_path_factory.mktemp("llama"), max_batch_size=8)


@pytest.mark.parametrize("sizes", [{"pp_size": 3}, {"tp_size": 2, "pp_size": 2}], ids=str)
def test_requests_come_go_and_are_preempted(t5, sizes):
    """With a cache so small that sequences wait for each other, in bursts, beams among them, one aborted."""
    expected = come_and_go(Pipeline(rebuilt(t5, **SHORT), FEW_BLOCKS))
    assert with_followers(rebuilt(t5, **SHORT, **sizes), FEW_BLOCKS, come_and_go) == expected


def chunked(pipe: Pipeline) -> list[tuple]:
    """Returns the tokens of prompts that begin alike, of a search and alone, and the logits of their own tokens."""
    begin = [5, 9, 17, 33, 4, 8, 15, 16, 23]
    prompts = [{"input_ids": begin + rest} for rest in ([42, 7], [11], [42, 7, 50, 51, 52, 3])]
    found = pipe.generate(prompts, max_new_tokens=9, ignore_eos=True, num_beams=2)
    single = pipe.generate(prompts, max_new_tokens=9, ignore_eos=True, return_context_logits=True)
    return [(a.token_ids, b.token_ids, b.context_logits) for a, b in zip(found, single, strict=True)]


def test_prompts_share_blocks_and_come_in_chunks(llama):
    """A few tokens at a time, while others decode."""
    expected = chunked(Pipeline(llama, CHUNKS))
    check_equal(with_followers(rebuilt(llama, max_batch_size=8, pp_size=3), CHUNKS, chunked), expected)


@pytest.fixture
def parts(monkeypatch):
    """Cuts passes of two rows already, and counts into how many parts."""
    counts: list[int] = []
    monkeypatch.setattr(micro_batches, "LEAST_ROWS", 1)
    for module, name in ((paged_runner, "micro_batches"), (prefill, "split_prefills")):
        whole = getattr(micro_batches, name)
        monkeypatch.setattr(module, name, lambda *args, whole=whole: counts.append(len(found := whole(*args))) or found)
    return counts


@pytest.mark.parametrize("name", ["tied t5", "llama", "opt-350m"])
def test_stages_compute_parts_of_a_pass_at_a_time(name, tmp_path, parts):
    engine = engine_dir(DEEP[name](), tmp_path, max_batch_size=8)
    check_all_ways(engine, pp_size=3)
    assert {1, 3} == {*parts} - {2}, "one process has whole passes"


def test_parts_of_prompts_that_end_in_an_image(tmp_path, parts):
    """A prefill takes its last row, or a search's first decode step, of each sequence another one."""

    def read(pipe: Pipeline) -> list[list[int]]:
        rows = range(pipe.config.vocab_size, pipe.config.vocab_size + pipe.processor.vision.num_features)
        turned = [given | {pipe.capabilities.id_field: [7, 9, *rows]} for given in inputs_of(pipe)]
        settings = {"max_new_tokens": 8, "ignore_eos": True}
        return [out.token_ids for beams in (1, 2) for out in pipe.generate(turned, num_beams=beams, **settings)]

    engine = engine_dir(MODELS["llava"](), tmp_path)
    expected = read(Pipeline(engine, CPU))
    assert expected[0] != expected[1], "the images differ"
    assert with_followers(rebuilt(engine, pp_size=2), CPU, read) == expected
    assert max(parts) == 2


def test_parts_of_passes_while_requests_come_and_go(t5, llama, parts):
    expected = come_and_go(Pipeline(rebuilt(t5, **SHORT), FEW_BLOCKS))
    assert with_followers(rebuilt(t5, **SHORT, tp_size=2, pp_size=2), FEW_BLOCKS, come_and_go) == expected
    expected = chunked(Pipeline(llama, CHUNKS))
    check_equal(with_followers(rebuilt(llama, max_batch_size=8, pp_size=3), CHUNKS, chunked), expected)
    assert max(parts) == 3


@pytest.mark.parametrize("sizes", [{"pp_size": 3}, {"tp_size": 2, "pp_size": 2}], ids=str)
def test_texts_are_encoded_by_all_stages(t5, sizes):
    """With what goes into each layer, whichever stage has it."""
    expected = encoded(Pipeline(t5, CPU))
    assert len(expected) == 1 + 3 + 1
    for ours, theirs in zip(with_followers(rebuilt(t5, **sizes), CPU, encoded), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_each_rank_encodes_its_share_of_the_images(tmp_path, monkeypatch):
    engine = engine_dir(tiny.nougat(seed=8), tmp_path)
    expected = image_features(Pipeline(engine, CPU))
    passes: list[int] = []
    encode = TorchEncoders.encode
    monkeypatch.setattr(TorchEncoders, "encode", lambda self, x: passes.append(len(x)) or encode(self, x))
    found = with_followers(rebuilt(engine, tp_size=2, pp_size=2), CPU, image_features)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    assert sorted(passes) == [1] * 4 + [2] * 4  # one image by each rank; and five, two by each


@pytest.mark.parametrize("method", METHODS)
def test_quantized_weights_are_shared(t5, method):
    """A layer is kept whole by its stage: nothing is rounded otherwise than in one process."""
    options = {"max_batch_size": 8, **method_options(method, 4)}
    expected = outputs(Pipeline(rebuilt(t5, **options), CPU))
    check_equal(with_followers(rebuilt(t5, pp_size=2, **options), CPU, outputs), expected)


@pytest.mark.parametrize("name", ["t5", "tied t5"])
def test_a_stage_keeps_what_it_runs(name, tmp_path):
    """Its layers under their own numbers; the embedding first, the head last, a matrix that is both on both."""
    whole = engine_dir(DEEP[name](), tmp_path)
    tensors, cache = whole.weights("decoder"), CacheBytes.from_engine(whole)
    split = rebuilt(whole, pp_size=3)
    parts = [split.weights("decoder", rank=rank) for rank in range(3)]
    assert split.manifest.mapping == {"tp": 1, "pp": 3} and split.build.pp_size == 3
    blocks = [sorted({int(n.split(".")[1]) for n in part if n.startswith("blocks.")}) for part in parts]
    assert blocks == ([[0, 1], [2, 3], [4]] if name == "t5" else [[0], [1], [2]])
    assert set().union(*parts) == set(tensors)
    assert [len(part["embedding.weight"]) for part in parts] == [60, 0, 0 if name == "t5" else 60]
    assert ["head.weight" in part for part in parts] == [False, False, name == "t5"]
    for part in parts:
        assert all(torch.equal(values, tensors[n][: len(values)]) for n, values in part.items())
    layers = len(blocks[0])
    assert CacheBytes.from_engine(split).full_batch * sum(map(len, blocks)) == cache.full_batch * layers


def test_what_cannot_be_run_is_refused(t5):
    with pytest.raises(EngineError, match=r"is built for 2 ranks, 1 runs it; run it with 2, or build it for 1\."):
        Pipeline(rebuilt(t5, pp_size=2), CPU, ALONE)
    with pytest.raises(
        ConfigError, match="a network of 3 layers cannot be cut into 4 pipeline stages; build with pp_size 3"
    ):
        rebuilt(t5, pp_size=4)
    with pytest.raises(ConfigError, match="pp_size is 2, only the backend torch splits networks"):
        rebuilt(t5, backend="onnxruntime", pp_size=2)
    with pytest.raises(ConfigError, match="pp_size"):
        rebuilt(t5, pp_size=0)
