"""Encoders of texts that fewer ranks split than the decoder: the tokens of one process."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.kits.models.adapted import AdaptedText
from tests.kits.models.engines import engine_dir, rebuilt
from tests.kits.models.families import MODELS
from tests.kits.rank_cases import CPU, all_ways, check_equal, encoded, outputs
from tests.kits.ranks import Threads, with_followers
from tests.parity.adapters.test_lora import adapted_text
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.builder import build_engine
from vlm.build.from_model import convert_model
from vlm.config import BuildConfig
from vlm.errors import ConfigError

WHOLE = {"tp_size": 2, "encoder_tp_size": 1}  # on each rank
HALVES = {"tp_size": 4, "encoder_tp_size": 2}  # twice
STAGES = {"tp_size": 2, "pp_size": 2, "encoder_tp_size": 1}
CASES = [("t5", WHOLE), ("t5", HALVES), ("bart", HALVES), ("blip2-t5", WHOLE), ("t5", STAGES)]
MORE = [("florence2", WHOLE), ("t5gemma", HALVES), ("t5gemma2", WHOLE), ("bart", {"tp_size": 4, "encoder_tp_size": 1})]
MORE += [("bart", {"tp_size": 4, "pp_size": 2, "encoder_tp_size": 2})]


@pytest.fixture(scope="module")
def t5(tmp_path_factory) -> EngineDir:
    """Gives an engine of one process, whose encoder and decoder have a table of embeddings in common."""
    return engine_dir(MODELS["t5"](), tmp_path_factory.mktemp("t5"), max_batch_size=8)


def num_files(engine: EngineDir | Checkpoint, role: str) -> int:
    return len(list((engine.path / role).glob("rank*.safetensors")))


@pytest.mark.parametrize(
    ("name", "sizes"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)], ids=str
)
def test_the_tokens_are_those_of_one_process(tmp_path, name, sizes):
    engine = engine_dir(MODELS[name](), tmp_path, max_batch_size=8)
    split = rebuilt(engine, max_batch_size=8, **sizes)
    stages, own = sizes.get("pp_size", 1), sizes["encoder_tp_size"]
    assert split.manifest.mapping == {"tp": sizes["tp_size"], "pp": stages, "encoder_tp": own}
    assert num_files(split, "decoder") == stages * sizes["tp_size"] and num_files(split, "encoder") == stages * own
    check_equal(with_followers(split, CPU, all_ways), all_ways(Pipeline(engine, CPU)))


@pytest.mark.parametrize(("sizes", "sums"), [(WHOLE, set()), (HALVES, {2}), ({"tp_size": 4}, {4})], ids=str)
def test_whose_sums_an_encoding_takes(t5, monkeypatch, sizes, sums):
    """Each rank that has the whole encoder tells the others nothing."""
    groups = set()

    def all_reduce(self: Threads, x: torch.Tensor) -> torch.Tensor:
        groups.add(len(self.group))
        return torch.stack(self.exchange.all(self.rank, x)).sum(0)

    monkeypatch.setattr(Threads, "all_reduce", all_reduce)
    found = with_followers(rebuilt(t5, **sizes), CPU, encoded)
    assert groups == sums
    for ours, theirs in zip(found, encoded(Pipeline(t5, CPU)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def generated(adapted: AdaptedText, sizes: dict[str, int]) -> list[list[int]]:
    split = rebuilt(adapted.engine, max_batch_size=8, **sizes)
    run = lambda pipe: [out.token_ids for out in pipe.generate(adapted.inputs, max_new_tokens=12)]  # noqa: E731
    return with_followers(split, dataclasses.replace(CPU, lora=adapted.lora), run)


def test_adapters_are_cut_as_the_encoder_is(tmp_path):
    adapted = adapted_text("t5", tmp_path)
    expected = [adapted.tokens(*case, 12) for case in adapted.cases]
    assert generated(adapted, WHOLE) == expected
    assert generated(adapted, HALVES) == expected


def test_quantized_weights_are_cut_as_the_encoder_is(t5):
    options = {"max_batch_size": 8, "quantization": "int8"}
    expected = outputs(Pipeline(rebuilt(t5, **options), CPU))
    check_equal(with_followers(rebuilt(t5, **HALVES, **options), CPU, outputs), expected)


@pytest.mark.parametrize("sizes", [WHOLE, HALVES, STAGES], ids=str)
def test_a_checkpoint_that_is_split_on_disk(t5, tmp_path, sizes):
    """Its engine is the one that is cut of the whole checkpoint, file by file."""
    checkpoint = Checkpoint.open(convert_model(t5.path.parent / "checkpoint", tmp_path / "split", **sizes))
    split = build_engine(checkpoint, tmp_path / "engine", BuildConfig(max_batch_size=8, **sizes), workers=2)
    assert split.manifest == rebuilt(t5, max_batch_size=8, **sizes).manifest
    options = " ".join(checkpoint.split_options)
    assert f"--encoder-tp-size {sizes['encoder_tp_size']}" in options
    with pytest.raises(ConfigError, match=f"asks for tp_size 2, pp_size 1; run vlm build with {options}, or build"):
        build_engine(checkpoint, tmp_path / "other", BuildConfig(tp_size=2))


def test_sizes_that_are_refused(t5, tmp_path):
    for size, words in ((3, "3, it must divide tp_size 4"), (8, "8, it must divide tp_size 4"), (0, "0, it must be")):
        with pytest.raises(ConfigError, match=f"encoder_tp_size is {words}"):
            BuildConfig(tp_size=4, encoder_tp_size=size)
    assert rebuilt(t5, tp_size=2, encoder_tp_size=2).manifest.mapping == {"tp": 2, "pp": 1}
    for name in ("llama", "nougat"):
        engine = engine_dir(MODELS[name](), tmp_path / name)
        parts = ", ".join(sorted(engine.roles))
        with pytest.raises(ConfigError, match=rf"texts and a decoder, this one's parts are {parts}; leave it out\."):
            rebuilt(engine, **WHOLE)
    with pytest.raises(ConfigError, match="tp_size is 2, only the backend torch splits networks"):
        rebuilt(t5, backend="onnxruntime", **WHOLE)
