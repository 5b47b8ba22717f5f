"""An engine's modules are made as its manifest says, in one place for all backends."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.errors import EngineError
from vlm.layers.quant import methods
from vlm.layers.quant.dense import Dense
from vlm.registry.networks import context_of, load_network

CPU = torch.device("cpu")


@pytest.fixture
def engine(tmp_path) -> EngineDir:
    return engine_dir(tiny.gpt2(), tmp_path)


def changed(engine: EngineDir, **values) -> EngineDir:
    return dataclasses.replace(engine, manifest=dataclasses.replace(engine.manifest, **values))


class Doubled(Dense):
    """Keeps half of every weight."""

    def apply(self, linear, x, bias, activation=None):
        return 2 * super().apply(linear, x, None) + (0 if bias is None else bias)


def test_the_manifest_says_how_weights_are_kept_and_what_a_process_runs(engine, monkeypatch):
    monkeypatch.setitem(methods.METHODS, "doubled", lambda options: Doubled())
    weights = engine.weights("decoder")
    decoder = load_network(changed(engine, quantization="doubled"), "decoder", weights, CPU)
    assert isinstance(decoder.blocks[0].attention.qkv.method, Doubled)
    assert isinstance(load_network(engine, "decoder", weights, CPU).blocks[0].attention.qkv.method, Dense)
    assert context_of(changed(engine, mapping={"tp": 2, "pp": 1}), "decoder").mapping.shard.size == 2


def test_weights_that_no_method_keeps_are_refused(engine):
    with pytest.raises(EngineError, match=r"keeps its weights as int3, which modules .* do not; rebuild the engine"):
        context_of(changed(engine, quantization="int3"), "decoder")


def test_weights_that_do_not_fit_are_one_sentence(engine):
    weights = engine.weights("decoder")
    del weights["final_norm.weight"]
    with pytest.raises(EngineError, match="the decoder weights do not fit the gpt2 model of this version; rebuild"):
        load_network(engine, "decoder", weights, CPU)
