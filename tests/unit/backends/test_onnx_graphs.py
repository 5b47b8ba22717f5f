"""Exported graphs: what is checked of them, how sequences share them, and what is said where they cannot be."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
from pathlib import Path

import pytest
import torch

pytest.importorskip("onnxruntime", reason="needs the onnx extra")

import onnx

from tests.kits.cli_kit import call
from tests.kits.models import tiny
from tests.kits.models.engines import engine_dir
from vlm.api.pipeline import Pipeline
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.backends import selection as backends
from vlm.backends.graphs import export as onnx_export
from vlm.backends.graphs import io as graph_io
from vlm.backends.installed import checked_backend
from vlm.backends.onnxruntime import check as graph_check
from vlm.backends.onnxruntime.session import OnnxGraph
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import ConfigError, EngineError, InputError
from vlm.executor.slots.cache import SlotCache
from vlm.executor.slots.packing import neighbours
from vlm.ops.attention import slot_attention as slots
from vlm.ops.attention.prefill_attention import tiles_of
from vlm.ops.layouts.paged_kv import PagedKV
from vlm.registry.catalogs import model_spec
from vlm.registry.role_configs import RoleConfigs
from vlm.requests.request import Request
from vlm.requests.sequence import PrefillChunk, Sequence


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """(engine, its decoder's graph, network, ports)"""
    engine = engine_dir(tiny.llama(num_key_value_heads=2), tmp_path_factory.mktemp("llama"), backend="onnxruntime")
    weights = Checkpoint.open(engine.path.parent / "checkpoint").weights("decoder")
    spec = model_spec("llama")
    network = spec.loaded(spec.config.from_dict(engine.config("decoder")), dict(weights), torch.device("cpu"))
    io = graph_io.graphs_of(RoleConfigs(decoder=network.config), engine.limits, torch.float32, caches_grow=True)[
        "decoder"
    ]
    return engine, engine.path / "decoder" / "model.onnx", network, io


def changed(path: Path, folder: Path, change) -> Path:
    """A copy of a graph after `change(node)` of its attentions."""
    model = onnx.load(str(path))
    for node in model.graph.node:
        if node.op_type == slots.ATTENTION:
            change(node)
    onnx.save(model, str(folder / "model.onnx"))
    return folder / "model.onnx"


# --- what is checked ---
def test_a_graph_holds_what_its_ports_say(llama):
    _, path, _, io = llama
    graph = onnx.load(str(path)).graph
    for ports, values in ((io.inputs, graph.input), (io.outputs, graph.output)):
        assert [port.name for port in ports] == [value.name for value in values]
        for port, value in zip(ports, values, strict=True):
            dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
            assert [d for d in dims if isinstance(d, int)] == [d for d in port.shape if isinstance(d, int)]
            assert dims[0] == "batch" or port.name == "prompt_table"
    assert sum(node.op_type == "TensorScatter" for node in graph.node) == 4


def test_attention_without_lengths_is_found(llama, tmp_path):
    _, path, _, _ = llama
    assert graph_check.structure(path, "decoder") == []
    lost = changed(path, tmp_path, lambda node: node.input.__setitem__(5, ""))
    assert len(graph_check.structure(lost, "decoder")) == 2
    assert "lacks the lengths of its keys" in graph_check.structure(lost, "decoder")[0]


@pytest.mark.parametrize("kind", [b"upper_left", b"none"])
def test_another_causality_is_found(llama, tmp_path, kind):
    _, path, _, _ = llama

    def change(node):
        next(a for a in node.attribute if a.name == "causal_kind").s = kind

    assert f"causal kind {kind.decode()}" in graph_check.structure(changed(path, tmp_path, change), "decoder")[0]


def test_other_numbers_are_found(llama, tmp_path):
    _, path, network, io = llama
    assert graph_check.numbers("decoder", network, io, path) == []
    wrong = changed(
        path, tmp_path, lambda node: next(a for a in node.attribute if a.name == "is_causal").__setattr__("i", 0)
    )
    with pytest.raises(EngineError, match="the exported decoder graph is not what the model computes: logits differs"):
        graph_check.check("decoder", network, io, wrong)


def test_bfloat16_and_weights_beside_the_graph(llama, tmp_path, monkeypatch):
    """A graph that ONNX Runtime cannot run is compared in float32; large weights lie in a file of their own."""
    _, _, network, io = llama
    monkeypatch.setattr(onnx_export, "EXTERNAL_FROM", 1000)
    spec, io = model_spec("llama"), io.to(torch.bfloat16)
    half = {name: tensor.bfloat16() for name, tensor in network.state_dict().items()}
    other = spec.loaded(network.config, half, torch.device("cpu"))
    onnx_export.export("decoder", other, io, tmp_path / "model.onnx")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert graph_check.numbers("decoder", other, io, tmp_path / "model.onnx") == []
    half["embedding.weight"] *= 1.3
    another = spec.loaded(network.config, half, torch.device("cpu"))
    assert graph_check.numbers("decoder", another, io, tmp_path / "model.onnx")


def test_the_shortest_sequences_can_be_built(llama, tmp_path):
    checkpoint = Checkpoint.open(llama[0].path.parent / "checkpoint")
    engine = build_engine(
        checkpoint, tmp_path / "e", BuildConfig(max_seq_len=2, max_batch_size=1, backend="onnxruntime")
    )
    pipe = Pipeline(engine, RuntimeConfig(device="cpu"))
    assert len(pipe.generate(decoder_prompt_token_ids=[5], max_new_tokens=1).token_ids) == 1


# --- the operators' definitions ---
def test_attention_over_slots_is_that_over_blocks():
    from vlm.ops.attention import prefill_attention

    generator = torch.Generator().manual_seed(0)
    draw = lambda *dims: torch.randn(*dims, generator=generator)  # noqa: E731
    q, keys, values = draw(1, 4, 3, 8), draw(1, 2, 12, 8), draw(1, 2, 12, 8)
    rows, table = q[0].transpose(0, 1), torch.zeros(1, 1, dtype=torch.int32)
    tiles = torch.tensor(tiles_of([(0, 5, 3)], rows=None), dtype=torch.int32)
    want = prefill_attention.reference(rows, PagedKV(keys, values), table, tiles, 1.0)
    got = slots.slot_attention(q, keys, values, None, torch.tensor([8]), True)
    torch.testing.assert_close(got[0].transpose(0, 1), want)


def test_rows_are_written_from_their_starts_on():
    cache, rows = torch.zeros(2, 1, 6, 1), torch.ones(2, 1, 2, 1)
    written = slots.slot_write(cache, rows, torch.tensor([0, 4]))
    assert written[:, 0, :, 0].tolist() == [[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1]]
    assert not cache.any()


# --- slots ---
def test_beams_follow_their_parents():
    port = graph_io.Port("self_k_0", ("batch", 1, "cached", 1), torch.float32)
    cache = SlotCache(graph_io.GraphIO((port,), (), {"o": "self_k_0"}), 5, {"cached": 2}, torch.device("cpu"))
    cache.tensors["self_k_0"] += torch.arange(5.0)[:, None, None, None]
    cache.reorder_cache(torch.tensor([[0, 2, 3]], dtype=torch.int32), torch.tensor([[2, 0, 0]]))
    assert cache.tensors["self_k_0"][:, 0, 0, 0].tolist() == [3.0, 1.0, 0.0, 0.0, 4.0]
    cache.copy(3, 1, 0, 1)
    assert cache.tensors["self_k_0"][1, 0, :, 0].tolist() == [0.0, 1.0]


def test_a_cache_grows_to_its_limit_and_keeps_what_it_holds():
    ports = (
        graph_io.Port("self_k_0", ("batch", 1, "cached", 1), torch.float32),
        graph_io.Port("cross_k_0", ("batch", 1, "crossed", 1), torch.float32),
    )
    limits = {"cached": 300, "crossed": 4}
    cache = SlotCache(graph_io.GraphIO(ports, (), {"o": "self_k_0"}), 2, limits, torch.device("cpu"))
    cache.write("self_k_0", 1, torch.ones(1, 3, 1))
    assert not cache.reserve("cached", 32)
    assert cache.reserve("cached", 33) and cache.tensors["self_k_0"].shape == (2, 1, 64, 1)
    assert cache.reserve("cached", 250) and cache.tensors["self_k_0"].shape == (2, 1, 256, 1)
    assert cache.reserve("cached", 257) and cache.tensors["self_k_0"].shape == (2, 1, 300, 1)
    assert cache.tensors["self_k_0"].sum(2).flatten().tolist() == [0.0, 3.0]
    assert cache.tensors["cross_k_0"].shape == (2, 1, 4, 1)


def chunks(*places: tuple[int, int, int]) -> list[tuple[Sequence, PrefillChunk]]:
    """(slot, start, end) each"""
    request = Request((1,))
    return [
        (Sequence(i, request, 9, 0, [1], slots=[slot]), PrefillChunk(0, a, b)) for i, (slot, a, b) in enumerate(places)
    ]


def test_neighbours_share_a_pass_where_their_padding_fits():
    slots_of = lambda found: [[s.slot for s, _ in group] for group in found]  # noqa: E731
    assert slots_of(neighbours(chunks((1, 0, 5), (0, 0, 4), (3, 0, 5)), 64)) == [[0, 1], [3]]
    assert slots_of(neighbours(chunks((0, 0, 5), (1, 0, 20)), 64)) == [[0], [1]], "padding would be most of it"
    assert slots_of(neighbours(chunks((0, 50, 60), (1, 0, 15)), 64)) == [[0], [1]], "it would end beyond the cache"


# --- what is said ---
def test_what_cannot_be_run_is_said(llama, tmp_path, monkeypatch):
    engine, path, _, io = llama
    with pytest.raises(InputError, match="an onnxruntime engine runs on cpu"):
        Pipeline(engine, RuntimeConfig(device="cuda"))
    with pytest.raises(ConfigError, match="onnxruntime does not compute in bfloat16"):
        checked_backend(BuildConfig(dtype="bfloat16", backend="onnxruntime"))
    with pytest.raises(ConfigError, match="threads is 0, it must be at least 1"):
        RuntimeConfig(threads=0)
    (tmp_path / "model.onnx").write_bytes(path.read_bytes()[:1000])
    with pytest.raises(EngineError, match=r"ONNX Runtime cannot load .*model\.onnx"):
        OnnxGraph(tmp_path / "model.onnx", io)
    with pytest.raises(EngineError, match="was exported by another version of vlm; rebuild the engine"):
        OnnxGraph(path, dataclasses.replace(io, inputs=io.inputs[1:]))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        EngineError, match=r"needs onnx, onnxscript, onnxruntime; run: pip install 'vlm-runtime\[onnx\]'"
    ):
        build_engine(Checkpoint.open(engine.path.parent / "checkpoint"), tmp_path / "e", engine.build)


def test_what_auto_takes(monkeypatch):
    assert backends.pick("cuda").name == "torch"
    assert backends.pick("cpu").name == "onnxruntime"
    assert backends.pick("cpu", "bfloat16").name == "torch"

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("vlm.backends.onnxruntime.backend.version", missing)
    assert backends.pick("cpu") == ("torch", "onnxruntime is not installed: pip install 'vlm-runtime[onnx]'")


# --- verbs ---
def test_inspect_and_verify(llama, tmp_path):
    engine, _, network, _ = llama
    shown = call("inspect", engine.path)
    assert shown.exit_code == 0 and f"{sum(p.numel() for p in network.parameters()):,} parameters" in shown.stdout
    folder = engine.path.parent / "hf"
    found = call("verify", engine.path, "--against", folder, "--new-tokens", 6)
    assert found.exit_code == 0 and found.stdout.count("100.0%") == 6 and "onnxruntime, float32" in found.stdout
    other = tmp_path / "other"
    tiny.llama(seed=9, num_key_value_heads=2).save_pretrained(other)
    found = call("verify", engine.path, "--against", other, "--new-tokens", 6)
    assert found.exit_code == 1 and "beyond the tolerance" in found.stdout


def test_a_damaged_graph_is_named(llama, tmp_path):
    import shutil

    copy = shutil.copytree(llama[0].path, tmp_path / "copy")
    data = bytearray((copy / "decoder" / "model.onnx").read_bytes())
    data[2000] ^= 1
    (copy / "decoder" / "model.onnx").write_bytes(data)
    with pytest.raises(EngineError, match=r"decoder/model\.onnx was edited"):
        EngineDir.open(copy)
    assert dataclasses.asdict(EngineDir.open(llama[0].path).build)["backend"] == "onnxruntime"
