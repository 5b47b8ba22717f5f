"""Engines with weights of 8 bits: what their graphs hold, how far they are off, and where there are none."""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytest.importorskip("onnxruntime", reason="needs the onnx extra")

import onnx
import torch

from tests import tiny
from tests.engines import engine_dir, rebuilt
from tests.prompted_kit import call
from vlm.artifacts.checkpoint import Checkpoint
from vlm.artifacts.engine_dir import EngineDir
from vlm.backends.graphs import io as graph_io
from vlm.backends.installed import checked_backend
from vlm.backends.onnxruntime import check as graph_check
from vlm.build.store import packaged_models
from vlm.config import BuildConfig
from vlm.errors import ConfigError, EngineError
from vlm.registry.catalogs import model_spec


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """(as exported, with weights of 8 bits) of one T5, whose output shares the table of embeddings"""
    model = tiny.t5()
    plain = engine_dir(model, tmp_path_factory.mktemp("t5"), backend="onnxruntime")
    return plain, rebuilt(plain, backend="onnxruntime", quantization="int8")


def operators(engine: EngineDir, name: str) -> Counter:
    return Counter(node.op_type for node in onnx.load(str(engine.path / name / "model.onnx")).graph.node)


@pytest.mark.parametrize("name", ["encoder", "cross", "decoder"])
def test_every_product_with_weights_has_8_bits(engines, name):
    plain, small = (operators(engine, name) for engine in engines)
    assert plain["Gemm"] > 0 and small["Gemm"] == small["MatMul"] == 0
    assert small["MatMulNBits"] == plain["Gemm"] + plain["MatMul"]
    nodes = [n for n in onnx.load(str(engines[1].path / name / "model.onnx")).graph.node if n.op_type == "MatMulNBits"]
    assert {a.i for node in nodes for a in node.attribute if a.name == "bits"} == {8}


def test_the_manifest_says_so(engines):
    plain, small = (EngineDir.open(engine.path) for engine in engines)
    assert (plain.manifest.quantization, small.manifest.quantization) == (None, "int8")
    assert small.build.quantization == "int8" and "--quantization int8" in " ".join(small.build.options())
    shown = json.loads(call("inspect", small.path, "--json").stdout)
    assert shown["quantization"] == "int8" and shown["roles"]["decoder"]["dtypes"] == ["int8", "float32"]


def test_a_graph_that_is_off_is_refused(engines, monkeypatch):
    _, small = engines
    spec = model_spec("t5")
    config = spec.config.from_dict(small.config("decoder"))
    weights = dict(Checkpoint.open(small.path.parent / "checkpoint").weights("decoder"))
    network = spec.loaded(config, weights, torch.device("cpu"))
    io, path = (
        graph_io.decoder_io(config, small.limits, torch.float32, caches_grow=True),
        small.path / "decoder" / "model.onnx",
    )
    graph_check.check("decoder", network, io, path, quantized=True)
    with pytest.raises(EngineError, match="logits differs by"):
        graph_check.check("decoder", network, io, path)


def test_a_shared_table_is_quantized_once_and_kept(engines):
    plain, small = engines
    graphs = [onnx.load(str(e.path / "decoder" / "model.onnx")).graph for e in (plain, small)]
    names = [{tensor.name for tensor in graph.initializer} for graph in graphs]
    assert "network.embedding.weight" in names[0] & names[1]
    assert sum("embedding" in name and name.endswith("_Q8") for name in names[1]) == 1
    gathered = [
        onnx.numpy_helper.to_array(t) for g in graphs for t in g.initializer if t.name.endswith("embedding.weight")
    ]
    assert (gathered[0] == gathered[1]).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"quantization": "int3", "backend": "onnxruntime"}, "quantization is 'int3', allowed are int8"),
        ({"quantization": "int8"}, "only the backend onnxruntime takes one"),
        ({"quantization": "int8", "backend": "tensorrt"}, "only the backend onnxruntime takes one"),
        ({"quantization": "int8", "backend": "onnxruntime", "dtype": "float16"}, "needs dtype float32, not float16"),
    ],
)
def test_what_cannot_be_quantized_is_said(options, says):
    with pytest.raises(ConfigError, match=says):
        checked_backend(BuildConfig(**options))


def test_a_mistake_is_one_sentence(tmp_path):
    found = call("build", "mini-t5", "-o", tmp_path / "e", "--quantization", "int8")
    assert found.exit_code == 2 and len(found.stderr.splitlines()) == 1
    assert "quantization is int8, only the backend onnxruntime takes one" in found.stderr


@pytest.mark.slow
def test_a_trained_model_still_reads(tmp_path):
    """Built and verified by the command line: weights are a fourth of their size."""
    engine = tmp_path / "engine"
    options = ["--backend", "onnxruntime", "--quantization", "int8"]
    assert call("build", "mini-nougat", "-o", engine, *options).exit_code == 0
    found = call("verify", engine, "--against", packaged_models()["mini-nougat"], "--threads", 1)
    assert found.exit_code == 0 and "float32, weights int8; Hugging Face in float32" in found.stdout
    graph = (engine / "decoder" / "model.onnx").stat().st_size
    assert graph < 0.5 * sum(p.nbytes for p in _decoder(engine).values())


def _decoder(engine):
    manifest = EngineDir.open(engine)
    spec = model_spec(manifest.roles["decoder"])
    return spec.skeleton(spec.config.from_dict(manifest.config("decoder"))).state_dict()
