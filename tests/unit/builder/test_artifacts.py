"""Folder -> checkpoint -> engine: closed, deterministic, checked on loading; every fault one sentence."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.kits.models import tiny
from tests.unit.builder.artifact_kit import contents
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.builder import build_engine
from vlm.build.kinds import kind_of
from vlm.build.random_checkpoint import random_checkpoint
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError, ConfigError, EngineError
from vlm.registry.catalogs import model_spec


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A tiny Nougat as Hugging Face saves it, with a processor's file."""
    folder = tmp_path_factory.mktemp("source") / "hf"
    tiny.nougat().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"size": {"height": 64, "width": 48}}')
    return folder


@pytest.fixture
def folder(source, tmp_path):
    return shutil.copytree(source, tmp_path / "hf")


@pytest.fixture(scope="module")
def built(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("built")
    return build_engine(convert_folder(source, out / "checkpoint"), out / "engine", BuildConfig())


@pytest.fixture
def engine(built, tmp_path):
    return EngineDir.open(shutil.copytree(built.path, tmp_path / "engine"))


def change_weights(folder, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_conversion_is_deterministic_and_repeatable(source, tmp_path):
    first = convert_folder(source, tmp_path / "a")
    assert contents(tmp_path / "a") == contents(convert_folder(source, tmp_path / "b").path)
    convert_folder(source, tmp_path / "a")  # over its older self
    assert contents(first.path) == contents(tmp_path / "b")
    assert kind_of(first.path) == "checkpoint" and Checkpoint.open(first.path).roles.keys() == {"visual", "decoder"}


def test_an_engine_is_self_contained(source, tmp_path):
    checkpoint = convert_folder(source, tmp_path / "checkpoint")
    build_engine(checkpoint, tmp_path / "engine", BuildConfig(dtype="bfloat16", max_batch_size=3, max_seq_len=40))
    shutil.rmtree(tmp_path / "checkpoint")
    engine = EngineDir.open(tmp_path / "engine")
    assert kind_of(engine.path) == "engine" and engine.family == "nougat"
    assert engine.build == BuildConfig("bfloat16", 3, 40, 48, "torch")
    assert engine.processor_dir is not None and engine.generation["eos_token_id"] == 2
    for role, name in engine.roles.items():
        weights, config = engine.weights(role), model_spec(name).config.from_dict(engine.config(role))
        expected = model_spec(name).skeleton(config).state_dict()
        assert weights.keys() == expected.keys()
        assert all(t.dtype == torch.bfloat16 and t.shape == expected[n].shape for n, t in weights.items())


def test_sharded_and_pickled_folders_give_the_same_checkpoint(source, tmp_path):
    want = contents(convert_folder(source, tmp_path / "want").path)
    model = tiny.nougat()
    model.save_pretrained(tmp_path / "hf", max_shard_size="20KB")
    shutil.copy(source / "preprocessor_config.json", tmp_path / "hf")
    assert (tmp_path / "hf" / "model.safetensors.index.json").exists()
    assert contents(convert_folder(tmp_path / "hf", tmp_path / "sharded").path) == want
    for file in (tmp_path / "hf").glob("model*"):
        file.unlink()
    torch.save(model.state_dict(), tmp_path / "hf" / "pytorch_model.bin")
    assert contents(convert_folder(tmp_path / "hf", tmp_path / "pickled").path) == want


def test_pickled_code_is_not_run(folder, tmp_path):
    class Payload:
        def __reduce__(self):
            return (tmp_path.joinpath("ran").touch, ())

    (folder / "model.safetensors").unlink()
    torch.save({"decoder.x": Payload()}, folder / "pytorch_model.bin")
    with pytest.raises(CheckpointError):
        convert_folder(folder, tmp_path / "out")
    assert not (tmp_path / "ran").exists()


WEIGHT = "decoder.model.decoder.layers.1.fc1.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda w: w.pop(WEIGHT), [WEIGHT, "missing"]),
        (lambda w: w.update({"decoder.model.decoder.layers.7.fc1.weight": torch.zeros(2)}), ["layers.7.fc1"]),
        (lambda w: w.update({"stray": torch.zeros(2)}), ["stray"]),
        (lambda w: w.update({WEIGHT: torch.zeros(3, 4)}), ["fc1.weight", r"\[3, 4\]", "should be"]),
        (lambda w: (w.pop(WEIGHT), w.update({"stray": torch.zeros(2)})), [WEIGHT, "stray"]),
    ],
)
def test_tensors_that_do_not_fit_are_all_named(folder, tmp_path, change, named):
    change_weights(folder, change)
    with pytest.raises(CheckpointError) as error:
        convert_folder(folder, tmp_path / "out")
    for part in named:
        assert error.match(part)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hf"], "a failed conversion leaves nothing"


@pytest.mark.parametrize(
    ("part", "change", "named"),
    [
        ("decoder", {"activation_function": "mish"}, "activation_function is 'mish'"),
        ("decoder", {"d_model": 30}, "d_model 30 is no multiple of decoder_attention_heads 4"),
        ("decoder", {"decoder_layers": "two"}, "decoder_layers is 'two', it must be a whole number above 0"),
        ("encoder", {"use_absolute_embeddings": True}, "use_absolute_embeddings"),
        ("encoder", {"window_size": 50}, "window"),
        (None, {"model_type": "donut"}, "donut"),
    ],
)
def test_configurations_that_change_the_maths_are_refused(folder, tmp_path, part, change, named):
    config = json.loads((folder / "config.json").read_text())
    (config if part is None else config[part]).update(change)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=named):
        convert_folder(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "content"), [("config.json", None), ("config.json", b"{"), ("model.safetensors", None),
                          ("model.safetensors", b"\x10\0\0\0\0\0\0\0{"), ("model.safetensors", b"")]
)  # fmt: skip
def test_damaged_folders(folder, tmp_path, name, content):
    (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    with pytest.raises((CheckpointError, ConfigError)) as error:
        convert_folder(folder, tmp_path / "out")
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize("file", ["decoder/rank0.safetensors", "processor/preprocessor_config.json", "manifest.json"])
@pytest.mark.parametrize("fault", ["truncated", "edited", "missing"])
def test_a_damaged_engine_is_refused_by_file(engine, file, fault):
    path = engine.path / file
    data = bytearray(path.read_bytes())
    if fault == "truncated":
        path.write_bytes(data[:-20])
    elif fault == "edited":
        data[-3] ^= 1
        path.write_bytes(data)
    else:
        path.unlink()
    with pytest.raises(EngineError) as error:
        EngineDir.open(engine.path)
    assert file.rpartition("/")[2] in str(error.value) and "\n" not in str(error.value)
    assert fault == "missing" or "rebuild" in str(error.value) or "damaged" in str(error.value)


def test_an_edited_limit_is_found(engine):
    manifest = json.loads((engine.path / "manifest.json").read_text())
    manifest["limits"]["max_batch_size"] = 512
    (engine.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(EngineError, match="edited"):
        EngineDir.open(engine.path)


@pytest.mark.parametrize(
    "asked", [{"max_seq_len": 97}, {"max_encoder_input_len": 49}, {"max_encoder_input_len": 10}, {"max_batch_size": 0}]
)
def test_limits_beyond_the_model_are_refused(source, tmp_path, asked):
    checkpoint = convert_folder(source, tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match=next(iter(asked))):
        build_engine(checkpoint, tmp_path / "engine", BuildConfig(**asked))
    assert not (tmp_path / "engine").exists()


def test_values_that_a_dtype_cannot_hold_are_refused(folder, tmp_path):
    change_weights(folder, lambda w: w.update({WEIGHT: w[WEIGHT] * 1e6}))
    checkpoint = convert_folder(folder, tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match=r"float16 cannot.*bfloat16"):
        build_engine(checkpoint, tmp_path / "engine", BuildConfig(dtype="float16"))
    build_engine(checkpoint, tmp_path / "engine", BuildConfig(dtype="bfloat16"))


def test_what_is_not_ours_is_not_replaced(source, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep")
    with pytest.raises(CheckpointError, match="not replaced"):
        convert_folder(source, tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "keep"


def test_random_checkpoints_are_those_of_their_seed(tmp_path):
    config = tiny.nougat_config().to_dict()
    first, again, other = (
        random_checkpoint(config, tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert contents(first.path) == contents(again.path) != contents(other.path)
    assert first.weights("decoder")["final_norm.weight"].eq(1).all()
