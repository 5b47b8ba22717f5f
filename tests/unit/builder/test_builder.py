from __future__ import annotations

import pytest
import torch

from tests.kits.cli_kit import call
from tests.unit.builder import artifact_kit
from tests.unit.builder.artifact_kit import CONFIG, GENERATION, contents, hf_tensors, write_hf
from vlm.artifacts.weights import TensorSource, write_tensors
from vlm.build import from_model
from vlm.build.builder import build_engine
from vlm.build.random_checkpoint import random_checkpoint
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError, ConfigError, EngineError, InputError


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    artifact_kit.install(monkeypatch)


def rewrite(checkpoint, role, changes):
    """Writes changed weights over a checkpoint's."""
    tensors = {name: tensor.clone() for name, tensor in checkpoint.weights(role).items()} | changes
    write_tensors(checkpoint.weight_file(role), TensorSource.from_tensors(tensors))


# --- convert


def test_converts_every_role(tmp_path):
    made = convert_folder(write_hf(tmp_path / "toy-hf"), tmp_path / "out")
    tensors = hf_tensors()
    assert made.roles == {"visual": "eye", "decoder": "voice"}
    assert torch.equal(made.weights("visual")["stem.weight"], tensors["encoder.stem.kernel"].flip(0))
    fused = torch.cat([tensors[f"decoder.layers.1.{p}.weight"] for p in "qkv"])
    assert torch.equal(made.weights("decoder")["blocks.1.qkv.weight"], fused)
    assert made.generation == GENERATION
    assert made.source == "toy-hf"
    assert [p.name for p in made.processor_files] == ["tokenizer.json"]


def test_conversion_is_deterministic_and_idempotent(tmp_path):
    source = write_hf(tmp_path / "hf")
    first = contents(convert_folder(source, tmp_path / "a").path)
    assert contents(convert_folder(source, tmp_path / "b").path) == first
    assert contents(convert_folder(source, tmp_path / "a").path) == first


def test_weights_keep_their_dtype(tmp_path):
    halves = {name: t.half() if t.is_floating_point() else t for name, t in hf_tensors().items()}
    made = convert_folder(write_hf(tmp_path / "hf", halves), tmp_path / "out")
    assert made.manifest["dtype"] == "float16"
    assert made.weights("decoder")["embedding.weight"].dtype == torch.float16


def test_weights_that_do_not_fit_are_told_at_once_and_leave_nothing(tmp_path):
    tensors = hf_tensors(layers=3) | {
        "encoder.stem.bias": torch.zeros(9),
        "decoder.adapter.weight": torch.zeros(1),
        "enc_to_dec_proj.weight": torch.zeros(1),
    }
    del tensors["decoder.layers.0.k.weight"], tensors["encoder.stem.kernel"]
    source = write_hf(tmp_path / "hf", tensors)
    with pytest.raises(CheckpointError) as caught:
        convert_folder(source, tmp_path / "new" / "out")
    text = str(caught.value)
    for reason in (
        "tensors of no part of a toy model: enc_to_dec_proj.weight",
        "missing tensors encoder.stem.kernel",
        "encoder.stem.bias: shape [9] should be [4]",
        "missing tensors decoder.layers.0.k.weight",
        "decoder.adapter.weight",
        "decoder.layers.2.q.weight",
    ):
        assert reason in text
    assert [p.name for p in tmp_path.iterdir()] == ["hf"]


def test_a_head_that_is_tied_in_name_only(tmp_path):
    tensors = hf_tensors()
    tensors["decoder.head.weight"] = tensors["decoder.embed.weight"].clone()
    convert_folder(write_hf(tmp_path / "hf", tensors), tmp_path / "out")
    tensors["decoder.head.weight"] += 1
    with pytest.raises(CheckpointError, match=r"decoder.head.weight: differs from"):
        convert_folder(write_hf(tmp_path / "hf", tensors), tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"decoder": CONFIG["decoder"] | {"per_layer_config": {"0": {}}}}, "per_layer_config is {'0'"),
        ({"encoder": None}, "lacks its part encoder"),
        ({"model_type": "other"}, "model_type 'other' is not supported"),
    ],
)
def test_configurations_that_cannot_be_run(tmp_path, change, reason):
    source = write_hf(tmp_path / "hf", config=CONFIG | change)
    with pytest.raises(ConfigError, match=reason):
        convert_folder(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["{}", "no JSON"])
def test_a_damaged_tokenizer_is_told_before_an_engine_is_made_that_cannot_be_loaded(tmp_path, content):
    folder = write_hf(tmp_path / "hf")
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"hf/tokenizer\.json is not a readable tokenizer: .*; fetch it again\.$"):
        convert_folder(folder, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_the_source_is_never_overwritten(tmp_path):
    source = write_hf(tmp_path / "hf")
    before = contents(source)
    with pytest.raises(CheckpointError, match="is not replaced"):
        convert_folder(source, source)
    assert contents(source) == before


# --- random weights


def test_random_weights(tmp_path):
    made = random_checkpoint("toy-base", tmp_path / "a", seed=3)
    weights = made.weights("decoder")
    assert torch.equal(weights["blocks.0.norm.weight"], torch.ones(artifact_kit.WIDTH))
    assert 0.01 < weights["embedding.weight"].std() < 0.03
    assert not torch.equal(weights["blocks.0.qkv.weight"], weights["blocks.1.qkv.weight"])
    assert made.processor_files == ()
    assert contents(random_checkpoint("toy-base", tmp_path / "b", seed=3).path) == contents(made.path)
    assert contents(random_checkpoint("toy-base", tmp_path / "c", seed=4).path) != contents(made.path)
    narrow = random_checkpoint("toy-base", tmp_path / "d", seed=3, initializer_range=0.005).weights("decoder")
    torch.testing.assert_close(4 * narrow["embedding.weight"], weights["embedding.weight"])


def test_random_weights_of_a_given_configuration_and_dtype(tmp_path):
    wide = CONFIG | {"encoder": {"model_type": "eye", "hidden_size": 32}}
    made = random_checkpoint(wide, tmp_path / "a", dtype="bfloat16")
    assert made.weights("visual")["stem.weight"].shape == (32, 3)
    assert made.manifest["dtype"] == "bfloat16"
    with pytest.raises(ConfigError, match="dtype is 'int3'"):
        random_checkpoint(wide, tmp_path / "b", dtype="int3")
    with pytest.raises(ConfigError, match="architecture 'toy-huge' is unknown"):
        random_checkpoint("toy-huge", tmp_path / "b")


# --- build


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_build_casts(tmp_path, dtype):
    made = random_checkpoint("toy-base", tmp_path / "ckpt")
    engine = build_engine(made, tmp_path / "engine", BuildConfig(dtype=dtype, max_batch_size=3, max_seq_len=10))
    assert engine.build == BuildConfig(dtype, 3, 10, 6)
    assert engine.processor_dir is None
    for role in engine.roles:
        source = made.weights(role)
        for name, tensor in engine.weights(role).items():
            assert torch.equal(tensor, source[name].to(getattr(torch, dtype)))


def test_build_is_deterministic_and_reports_progress(tmp_path):
    made, seen = random_checkpoint("toy-base", tmp_path / "ckpt"), []
    first = contents(build_engine(made, tmp_path / "a", BuildConfig(), progress=lambda *v: seen.append(v)).path)
    assert contents(build_engine(made, tmp_path / "b", BuildConfig()).path) == first
    assert contents(build_engine(made, tmp_path / "a", BuildConfig()).path) == first
    assert seen[-1][1] == seen[-1][2] and [v[1] for v in seen] == sorted(v[1] for v in seen)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_seq_len": 17}, "max_seq_len is 17, this model allows at most 16"),
        ({"max_encoder_input_len": 7}, "max_encoder_input_len is 7, this model allows at most 6"),
        ({"max_encoder_input_len": 5}, "one image takes 6 rows"),
    ],
)
def test_limits_beyond_the_model(tmp_path, limits, reason):
    made = random_checkpoint("toy-base", tmp_path / "ckpt")
    with pytest.raises(ConfigError, match=reason):
        build_engine(made, tmp_path / "engine", BuildConfig(**limits))
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt"]


def test_weights_that_the_dtype_cannot_hold(tmp_path):
    made = random_checkpoint("toy-base", tmp_path / "ckpt")
    rewrite(made, "visual", {"stem.bias": torch.full((4,), 1e6)})
    build_engine(made, tmp_path / "engine", BuildConfig(dtype="bfloat16"))
    with pytest.raises(CheckpointError, match=r"stem.bias holds values that float16 cannot"):
        build_engine(made, tmp_path / "half", BuildConfig(dtype="float16"))
    rewrite(made, "visual", {"stem.bias": torch.full((4,), float("nan"))})
    with pytest.raises(CheckpointError, match=f"visual weight stem.bias holds NaN or infinity: {made.source} is"):
        build_engine(made, tmp_path / "half", BuildConfig())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ckpt", "engine"]


def test_a_checkpoint_whose_weights_were_changed(tmp_path):
    made = random_checkpoint("toy-base", tmp_path / "ckpt")
    rewrite(made, "visual", {"stem.bias": torch.zeros(5), "stray": torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r"does not fit its config.json in stem.bias, stray"):
        build_engine(made, tmp_path / "engine", BuildConfig())


def test_an_engine_is_not_built_over_something_else(tmp_path):
    made = random_checkpoint("toy-base", tmp_path / "ckpt")
    with pytest.raises(EngineError, match="is not replaced"):
        build_engine(made, made.path, BuildConfig())


def test_layers_that_no_stage_can_leave_out(tmp_path):
    """Of a network whose module keeps them in a list of its own."""
    made = convert_folder(write_hf(tmp_path / "hf"), tmp_path / "ckpt")
    with pytest.raises(ConfigError, match="the voice network does not keep its layers in Blocks"):
        build_engine(made, tmp_path / "engine", BuildConfig(pp_size=2))
    assert not (tmp_path / "engine").exists()


# --- on the way to an engine


@pytest.mark.parametrize("source", ["folder", "random"])
def test_the_checkpoint_of_an_engine_lies_beside_it(source, tmp_path, monkeypatch):
    """As large as the model: the temporary directory of the system may be small, or be memory."""
    written = []

    def watched(function):
        return lambda arch, out, **options: written.append(out) or function(arch, out, **options)

    monkeypatch.setattr(from_model, "convert_folder", watched(convert_folder))
    monkeypatch.setattr("vlm.build.random_checkpoint.random_checkpoint", watched(random_checkpoint))
    folder, out = write_hf(tmp_path / "toy-hf"), tmp_path / "engines" / "toy"
    out.parent.mkdir()
    arguments = [folder] if source == "folder" else ["--random-weights", "--arch", "toy-base"]
    result = call("build", *arguments, "-o", out)
    assert result.exit_code == 0, result.stderr
    assert [path.parent.parent for path in written] == [out.parent] and list(out.parent.iterdir()) == [out]


def test_an_engine_beside_which_nothing_can_be_written(tmp_path):
    with pytest.raises(EngineError, match=r"the engine directory /proc/none/toy cannot be written: "):
        from_model.build_model(write_hf(tmp_path / "toy-hf"), "/proc/none/toy")


@pytest.mark.parametrize(("arguments", "says"), [
    ((None,), "out is None; name a file or a folder"), (("toy", {"dtype": "x"}), "config is {'dtype': 'x'}; give"),
])  # fmt: skip
def test_arguments_of_another_type(tmp_path, arguments, says):
    with pytest.raises(InputError, match=f"^{says}"):
        from_model.build_model(tmp_path, *arguments)
