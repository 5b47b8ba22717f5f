from __future__ import annotations

import json

import pytest
import torch

from tests.unit.builder import artifact_kit
from tests.unit.builder.artifact_kit import CONFIG, GENERATION, contents
from vlm.artifacts import hashes
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build.builder import build_engine
from vlm.build.kinds import kind_of
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.errors import EngineError
from vlm.layers.context import ModelContext

WEIGHTS = "decoder/rank0.safetensors"


@pytest.fixture
def engine(tmp_path, monkeypatch) -> EngineDir:
    artifact_kit.install(monkeypatch)
    source = artifact_kit.write_hf(tmp_path / "hf")
    return build_engine(convert_folder(source, tmp_path / "ckpt"), tmp_path / "engine", BuildConfig())


def test_opens_what_was_built(engine):
    read = EngineDir.open(engine.path)
    assert read == engine
    assert read.family == "toy"
    assert read.roles == {"visual": "eye", "decoder": "voice"}
    assert read.build == BuildConfig(max_batch_size=8, max_seq_len=16, max_encoder_input_len=6)
    assert read.config("visual")["width"] == artifact_kit.WIDTH
    assert read.generation == GENERATION
    assert read.processor_dir == engine.path / "processor"
    assert set(read.manifest.files) == set(contents(engine.path)) - {"manifest.json"}
    assert set(read.manifest.built_on) == {"python", "torch", "device", "platform"}


def test_weights_load_by_name_and_device(engine):
    weights = engine.weights("visual")
    module = artifact_kit.Eye(artifact_kit.parse_eye(CONFIG["encoder"]), ModelContext())
    module.load_state_dict(weights, strict=True, assign=True)
    assert engine.weights("visual", device=torch.device("cpu"))["stem.bias"].device.type == "cpu"


def test_weights_are_mapped_not_read(engine):
    engine.weights("decoder")["embedding.weight"].zero_()
    EngineDir.open(engine.path)  # the file is as it was


def edit(path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize("verify", [True, False])
def test_truncated(engine, verify):
    path = engine.path / WEIGHTS
    edit(path, path.read_bytes()[:-9])
    with pytest.raises(EngineError, match=rf"{WEIGHTS} is truncated .*vlm build"):
        EngineDir.open(engine.path, verify=verify)


@pytest.mark.parametrize("name", [WEIGHTS, "processor/tokenizer.json"])
def test_edited(engine, name):
    data = bytearray((engine.path / name).read_bytes())
    data[-1] ^= 1
    edit(engine.path / name, bytes(data))
    with pytest.raises(EngineError, match=rf"{name} was edited"):
        EngineDir.open(engine.path)
    EngineDir.open(engine.path, verify=False)  # the size is right: only the hashes tell


@pytest.mark.parametrize("piece", [16, hashes.PIECE])
def test_an_edited_file_is_found_by_pieces_and_as_a_whole(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(hashes, "PIECE", piece)
    artifact_kit.install(monkeypatch)
    checkpoint = convert_folder(artifact_kit.write_hf(tmp_path / "hf"), tmp_path / "ckpt")
    engine = build_engine(checkpoint, tmp_path / "engine", BuildConfig())
    assert (hashes.PIECES in engine.manifest.files[WEIGHTS]) == (piece == 16)
    EngineDir.open(engine.path)
    data = bytearray((engine.path / WEIGHTS).read_bytes())
    data[len(data) // 2] ^= 1
    edit(engine.path / WEIGHTS, bytes(data))
    with pytest.raises(EngineError, match=rf"is not as it was built: {WEIGHTS} was edited; rebuild it"):
        EngineDir.open(engine.path)


def test_missing_longer_and_added_are_told_at_once(engine):
    (engine.path / WEIGHTS).unlink()
    edit(engine.path / "processor/tokenizer.json", bytes(800))
    (engine.path / "processor/added_tokens.json").write_text("{}")
    (engine.path / ".DS_Store").write_text("")
    (engine.path / "processor/.nfs0001").write_text("")
    with pytest.raises(EngineError) as caught:
        EngineDir.open(engine.path)
    for reason in (f"{WEIGHTS} is missing", "tokenizer.json was edited (800 bytes", "added_tokens.json was added"):
        assert reason in str(caught.value)
    assert "DS_Store" not in str(caught.value) and "nfs" not in str(caught.value)


def test_an_edited_limit_in_the_manifest(engine):
    path = engine.path / "manifest.json"
    values = json.loads(path.read_text())
    values["limits"]["max_seq_len"] = 4096
    path.write_text(json.dumps(values))
    with pytest.raises(EngineError, match=r"manifest.json was edited"):
        EngineDir.open(engine.path)


def test_another_format_and_a_truncated_manifest(engine):
    path = engine.path / "manifest.json"
    text = path.read_text()
    path.write_text(json.dumps(json.loads(text) | {"format_version": 99}))
    with pytest.raises(EngineError, match=r"engine format 99.*vlm build"):
        EngineDir.open(engine.path)
    path.write_text(text[: len(text) // 2])
    with pytest.raises(EngineError, match=r"manifest.json is damaged"):
        EngineDir.open(engine.path)
    assert kind_of(engine.path) == "engine"


def test_what_is_no_engine(tmp_path):
    with pytest.raises(EngineError, match="no such folder"):
        EngineDir.open(tmp_path / "gone")
    with pytest.raises(EngineError, match=r"holds no manifest.json"):
        EngineDir.open(tmp_path)


def test_kind_of(engine, tmp_path):
    assert kind_of(engine.path) == "engine"
    assert kind_of(tmp_path / "ckpt") == "checkpoint"
    assert kind_of(str(tmp_path / "hf")) == "hf"
    assert kind_of(tmp_path) is None
    assert kind_of(tmp_path / "gone") is None
    assert kind_of(tmp_path / "hf" / "config.json") is None
    (tmp_path / "manifest.json").write_text('{"name": "somebody else\'s"}')
    assert kind_of(tmp_path) is None


def test_an_engine_stands_alone(engine, tmp_path):
    moved = tmp_path / "elsewhere"
    engine.path.rename(moved)
    for path in (tmp_path / "ckpt", tmp_path / "hf"):
        path.rename(path.with_suffix(".gone"))
    assert EngineDir.open(moved).weights("decoder")
