"""A checkpoint that is quantized itself: built as it is, every parameter of a method's inputs applied."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from tests.kits.models.engines import grouped_checkpoint
from tests.kits.quantized_folders import quantized_checkpoint
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.backends.torch import check_fp8
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.errors import CheckpointError, ConfigError, EngineError
from vlm.layers.context import ModelContext
from vlm.layers.linear import Linear
from vlm.layers.quant.inputs import Inputs
from vlm.layers.quant.int4 import Int4
from vlm.layers.quant.methods import METHODS, quantization_of
from vlm.registry.weights import quantized

GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Checkpoint:
    return grouped_checkpoint(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("name", METHODS)
def test_a_quantized_checkpoint_is_built_as_it_is(plain, tmp_path, name):
    options = {"group_size": 8} if name.startswith("int4") else {}
    checkpoint = quantized_checkpoint(plain, tmp_path / "small", name, **options)
    assert (checkpoint.quantization, checkpoint.manifest["dtype"]) == (name, "float32")
    own = build_engine(checkpoint, tmp_path / "own", BuildConfig(dtype="bfloat16"))
    direct = build_engine(plain, tmp_path / "direct", BuildConfig(dtype="bfloat16", quantization=name, **options))
    assert own.manifest.quantization == name and own.manifest.quantization_options == options
    assert own.build == direct.build
    first, second = own.weights("decoder"), direct.weights("decoder")
    assert set(first) == set(second) and {first[n].dtype for n in first} == {second[n].dtype for n in second}


def test_a_quantized_checkpoint_has_one_quantization(plain, tmp_path):
    checkpoint = quantized_checkpoint(plain, tmp_path / "small", group_size=8)
    for build in ({"quantization": "int8"}, {"group_size": 4}, {"ignore": ("ffn",)}):
        with pytest.raises(ConfigError, match=r"is quantized already \(int4\).*leave that out"):
            build_engine(checkpoint, tmp_path / "engine", BuildConfig(**build))
    build_engine(checkpoint, tmp_path / "engine", BuildConfig(quantization="int4", group_size=8))


@pytest.mark.parametrize("options", [{"group_size": 64}, {"ignore": ("ffn",)}])
def test_options_of_no_quantization_are_refused(plain, tmp_path, options):
    with pytest.raises(ConfigError, match=f"{next(iter(options))} is of weights that are quantized, .* name one, or"):
        build_engine(plain, tmp_path / "engine", BuildConfig(**options))


def test_patterns_that_match_no_layer_are_named(plain, tmp_path):
    build = BuildConfig(quantization="int8", ignore=("head", "visual", "nosuch", "blocks.0.*", "fnn.up"))
    with pytest.raises(ConfigError, match=r"^ignore names fnn.up, nosuch, which no layer .* there are decoder\.blocks"):
        build_engine(plain, tmp_path / "engine", build)
    assert not (tmp_path / "engine").exists()


def test_a_matrix_is_quantized_once_and_by_blocks(plain, tmp_path, monkeypatch):
    rows, whole = [], METHODS["int4"]({"group_size": 8}).quantize
    monkeypatch.setattr(Int4, "quantize", lambda self, weight: rows.append(len(weight)) or whole(weight))
    monkeypatch.setattr(quantized, "BLOCK", 5 * 32)
    build_engine(plain, tmp_path / "blocks", BuildConfig(quantization="int4", group_size=8))
    kept, linears = EngineDir.open(tmp_path / "blocks").weights("decoder"), plain.weights("decoder")
    packed = [name for name in kept if name.endswith("weight_packed")]
    assert sum(rows) == sum(len(kept[name]) for name in packed) and max(rows) <= 5
    for name in packed:
        path = name.removesuffix("weight_packed")
        for part, values in whole(linears[f"{path}weight"]).items():
            assert torch.equal(kept[f"{path}{part}"], values)


def test_a_checkpoint_of_an_unknown_quantization_is_refused(plain, tmp_path):
    checkpoint = quantized_checkpoint(plain, tmp_path / "small", "int8")
    unknown = dataclasses.replace(checkpoint, manifest=checkpoint.manifest | {"quantization": "int3"})
    with pytest.raises((CheckpointError, ConfigError), match="int3"):
        build_engine(unknown, tmp_path / "engine", BuildConfig())
    shuffled = dataclasses.replace(checkpoint, manifest=checkpoint.manifest | {"quantization": "fp8"})
    with pytest.raises(CheckpointError, match=r"does not hold .* as fp8 keeps them"):
        build_engine(shuffled, tmp_path / "engine", BuildConfig())


# --- parameters of the inputs


def layer(name: str, **inputs: bool) -> Linear:
    """Returns a quantized Linear of 32 inputs and 48 outputs with random parameters of its inputs."""
    linear = Linear(32, 48, context=ModelContext())
    linear.keep(quantization_of(name, {"group_size": 8, **inputs}).method_for("up"))
    weight = torch.randn(48, 32, generator=GENERATOR)
    values = linear.method.quantize(weight) | {
        "bias": torch.randn(48, generator=GENERATOR),
        "pre_quant_scale": torch.rand(32, generator=GENERATOR) + 0.5,
        "input_order": torch.randperm(32, generator=GENERATOR).int(),
        "input_scale": torch.tensor([0.02]),
    }
    linear.load_state_dict({name: values[name] for name in linear.state_dict()}, strict=True, assign=True)
    return linear.requires_grad_(False)


@pytest.mark.parametrize("inputs", [("pre_quant_scale",), ("input_order",), ("pre_quant_scale", "input_order")])
@pytest.mark.parametrize("name", METHODS)
def test_parameters_of_the_inputs_stand_for_another_weight(name, inputs):
    linear, x = layer(name, **dict.fromkeys(inputs, True)), torch.randn(5, 32, generator=GENERATOR)
    assert set(inputs) <= set(linear.state_dict())
    kept = {n: p for n, p in linear.named_parameters() if n != "bias"}
    expected = x @ linear.method.dequantize(kept).t() + linear.bias
    tolerance = 1e-4 if name.startswith("int") else 1.2  # others round the rows, too
    torch.testing.assert_close(linear(x), expected, atol=tolerance, rtol=1e-4)


@pytest.mark.parametrize(("name", "most", "dtype"), [("w8a8", 127, torch.int8), ("fp8", 448, torch.float8_e4m3fn)])
def test_static_scales_round_rows_alike(name, most, dtype):
    linear, x = layer(name, input_scale=True), torch.randn(5, 32, generator=GENERATOR) * 2
    steps = (x / linear.input_scale).clamp(-most - (name == "w8a8"), most)
    rounded = (steps.round() if name == "w8a8" else steps).to(dtype).float() * linear.input_scale
    weight = linear.method.dequantize(dict(linear.named_parameters()))
    torch.testing.assert_close(linear(x), rounded @ weight.t() + linear.bias, atol=1e-3, rtol=1e-4)


def test_patterns_say_which_layers_have_them():
    quantization = quantization_of("fp8", {"pre_quant_scale": ["ffn.down"], "input_scale": True})
    assert quantization.of_role("decoder").method_for("blocks.0.ffn.down").inputs == Inputs(True, False, True)
    assert quantization.of_role("decoder").method_for("blocks.0.ffn.up").inputs == Inputs(False, False, True)
    with pytest.raises(ConfigError, match=r"int8 does not round .* takes no input_scale"):
        quantization_of("int8", {"input_scale": True})


def test_a_quantized_engine_of_a_checkpoint_generates(plain, tmp_path):
    from vlm.api.pipeline import Pipeline

    checkpoint = quantized_checkpoint(plain, tmp_path / "small", "int8")
    tokens = []
    for source, build in ((checkpoint, {}), (plain, {"quantization": "int8"})):
        engine = build_engine(source, tmp_path / f"engine-{len(tokens)}", BuildConfig(**build))
        outputs = Pipeline(engine, RuntimeConfig(device="cpu")).generate([{"input_ids": [5, 6, 7]}], max_new_tokens=6)
        tokens.append(outputs[0].token_ids)
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("quantization", "kept", "says"),
    [
        ("fp8", None, "the weights are kept in fp8, which Old GPU does not have"),
        (None, "fp8", "kv_cache_dtype is fp8, which Old GPU does not have"),
        ("int8", "int8", None),
    ],
)
def test_fp8_on_a_gpu_without_it(monkeypatch, quantization, kept, says):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Old GPU")
    engine = SimpleNamespace(build=BuildConfig(quantization=quantization))
    check = lambda: check_fp8(engine, RuntimeConfig(kv_cache_dtype=kept), torch.device("cuda"))  # noqa: E731
    if says is None:
        check()
    else:
        with pytest.raises(EngineError, match=says):
            check()
