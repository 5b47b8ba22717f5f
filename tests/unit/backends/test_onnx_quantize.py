"""Engines with weights of 8 bits: what their graphs hold, how far they are off, and where there are none."""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytest.importorskip("onnxruntime", reason="needs the onnx extra")

import onnx
import torch

from tests.kits.cli_kit import call
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir, rebuilt
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.backends.graphs import io as graph_io
from vlm.backends.installed import checked_backend
from vlm.backends.onnxruntime import check as graph_check
from vlm.build.locate import packaged_models
from vlm.config import BuildConfig
from vlm.errors import ConfigError, EngineError
from vlm.registry.catalogs import model_spec

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """(as exported, with weights of 8 bits) of one T5, whose output shares the table of embeddings"""
    model = tiny.t5()
    plain = engine_dir(model, tmp_path_factory.mktemp("t5"), backend="onnxruntime")
    return plain, rebuilt(plain, backend="onnxruntime", quantization="int8")


def nodes(engine: EngineDir, name: str) -> list[onnx.NodeProto]:
    return list(onnx.load(str(engine.path / name / "model.onnx")).graph.node)


def operators(engine: EngineDir, name: str) -> Counter:
    return Counter(node.op_type for node in nodes(engine, name))


@pytest.mark.parametrize(
    ("name", "form"),
    [("encoder", "MatMulIntegerToFloat"), ("cross", "MatMulIntegerToFloat"), ("decoder", "MatMulNBits")],
)
def test_every_product_with_weights_has_8_bits(engines, name, form):
    """By groups where rows are few, in whole numbers where they are many; a scale a channel in both."""
    plain, small = (operators(engine, name) for engine in engines)
    assert plain["Gemm"] + plain["MatMul"] == small[form] > 0 and small["Gemm"] == small["MatMul"] == 0
    values = {a.name: a.i for node in nodes(engines[1], name) if node.op_type == form for a in node.attribute}
    if form == "MatMulNBits":
        assert values["bits"] == 8 and values["accuracy_level"] == 4


def test_the_manifest_says_so(engines):
    plain, small = (EngineDir.open(engine.path) for engine in engines)
    assert (plain.manifest.quantization, small.manifest.quantization) == (None, "int8")
    assert small.build.quantization == "int8" and "--quantization int8" in " ".join(small.build.options())
    shown = json.loads(call("inspect", small.path, "--json").stdout)
    assert shown["quantization"] == "int8" and shown["roles"]["decoder"]["dtypes"] == ["int8", "float32"]


def test_a_graph_that_is_off_is_refused(engines):
    """Rounding what the weights meet passes as rough; the dense graph's bound does not let it."""
    _, small = engines
    spec = model_spec("t5")
    config = spec.config.from_dict(small.config("decoder"))
    weights = dict(Checkpoint.open(small.path.parent / "checkpoint").weights("decoder"))
    network = spec.loaded(config, weights, torch.device("cpu"))
    io, path = (
        graph_io.decoder_io(config, small.limits, torch.float32, caches_grow=True),
        small.path / "decoder" / "model.onnx",
    )
    graph_check.check("decoder", network, io, path, rough=True)
    with pytest.raises(EngineError, match="logits differs by"):
        graph_check.check("decoder", network, io, path)


def test_a_head_has_8_bits_and_its_table_stays(engines):
    graphs = [onnx.load(str(e.path / "decoder" / "model.onnx")).graph for e in engines]
    names = [{tensor.name for tensor in graph.initializer} for graph in graphs]
    assert "network.embedding.weight" in names[0] & names[1] and "network.head.weight.levels" in names[1]
    gathered = [
        onnx.numpy_helper.to_array(t) for g in graphs for t in g.initializer if t.name.endswith("embedding.weight")
    ]
    assert (gathered[0] == gathered[1]).all()


def test_layers_stay_where_that_is_said(tmp_path):
    options = {"quantization": "int4", "group_size": 16, "ignore": ("head", "ffn")}
    nodes_by_kind = operators(engine_dir(tiny.t5(), tmp_path, backend="onnxruntime", **options), "decoder")
    assert nodes_by_kind["MatMulNBits"] == 2 * 4, "of two layers the attentions' products"
    assert nodes_by_kind["Gemm"] + nodes_by_kind["MatMul"] == 2 * 2 + 1, "feed-forward and head"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"quantization": "int3", "backend": "onnxruntime"}, "quantization is 'int3', allowed are int8"),
        ({"quantization": "awq"}, "allowed are int8, .*, while awq, gptq and smoothquant are of vlm quantize --format"),
        ({"quantization": "fp8", "backend": "onnxruntime"}, "is fp8, which onnxruntime does not take; torch"),
        ({"quantization": "int8", "backend": "onnxruntime", "dtype": "float16"}, "needs dtype float32, not float16"),
        (
            {"quantization": "int4", "backend": "onnxruntime", "group_size": 48},
            "group_size is 48, onnxruntime",
        ),
        ({"quantization": "int8", "group_size": 64}, "group_size is 64, quantization int8 has no groups; leave it out"),
    ],
)
def test_what_cannot_be_quantized_is_said(options, says):
    with pytest.raises(ConfigError, match=says):
        checked_backend(BuildConfig(**options))


def test_a_mistake_is_one_sentence(tmp_path):
    options = ("--quantization", "fp8", "--backend", "onnxruntime")
    found = call("build", "mini-t5", "-o", tmp_path / "e", *options)
    assert found.exit_code == 2 and len(found.stderr.splitlines()) == 1
    assert "--quantization is fp8, which onnxruntime does not take; torch, tensorrt can." in found.stderr


def test_groups_that_do_not_divide_are_said(engines):
    with pytest.raises(ConfigError, match=r"groups of 128 weights do not divide .* give group_size"):
        rebuilt(engines[0], backend="onnxruntime", quantization="int4")


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
