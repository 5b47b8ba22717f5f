from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.builder.artifact_kit import CONFIG, contents
from vlm.artifacts.files import atomic_dir, write_atomically
from vlm.artifacts.hugging_face.generation_config import generation_defaults
from vlm.artifacts.hugging_face.hf_folder import HFFolder
from vlm.artifacts.hugging_face.model_files import ModelFiles
from vlm.artifacts.native.checkpoint import Checkpoint, write_checkpoint
from vlm.artifacts.native.roles import RoleWeights
from vlm.artifacts.weights import TensorFiles, TensorSource, write_hashed, write_tensors
from vlm.errors import CheckpointError

TENSORS = {
    "half": torch.arange(3, dtype=torch.bfloat16),
    "matrix": torch.arange(6.0).reshape(2, 3).T,  # not contiguous
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
    "ids": torch.arange(5),
    "flags": torch.tensor([True, False]),
}


def write(path, tensors=TENSORS, **changes):
    roles = {"decoder": RoleWeights("voice", {"depths": [2, 2]}, TensorSource.from_tensors(tensors))}
    values = {"family": "toy", "roles": roles, "generation": {"num_beams": 2}, "source": "a test"} | changes
    return write_checkpoint(path, **values)


def folder(path, files):
    path.mkdir()
    for name, value in files.items():
        (path / name).write_text(value if isinstance(value, str) else json.dumps(value))
    return HFFolder(path)


# --- tensor files


def test_writes_what_the_safetensors_library_reads(tmp_path):
    entry = write_hashed(tmp_path / "a.safetensors", TensorSource.from_tensors(TENSORS))
    for read in (load_file(tmp_path / "a.safetensors"), TensorFiles([tmp_path / "a.safetensors"])):
        assert set(read) == set(TENSORS)
        for name, tensor in TENSORS.items():
            assert read[name].dtype == tensor.dtype
            assert torch.equal(read[name], tensor)
    assert entry["size"] == (tmp_path / "a.safetensors").stat().st_size


def test_the_order_of_tensors_does_not_change_the_bytes(tmp_path):
    first = write_hashed(tmp_path / "a", TensorSource.from_tensors(TENSORS))
    assert write_hashed(tmp_path / "b", TensorSource.from_tensors(dict(reversed(TENSORS.items())))) == first
    write_tensors(tmp_path / "c", TensorSource.from_tensors(TENSORS))
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_mapped_tensor_may_be_changed_without_changing_the_file(tmp_path):
    save_file({"a": torch.zeros(4)}, tmp_path / "a.safetensors")
    TensorFiles([tmp_path / "a.safetensors"])["a"].fill_(1)
    assert load_file(tmp_path / "a.safetensors")["a"].sum() == 0


# --- Hugging Face folders


@pytest.mark.parametrize("cut", [0, 4, 40, -1])
def test_truncated_safetensors(tmp_path, cut):
    hf = folder(tmp_path / "m", {"config.json": CONFIG})
    save_file({"a": torch.zeros(64)}, hf.path / "model.safetensors")
    data = (hf.path / "model.safetensors").read_bytes()
    (hf.path / "model.safetensors").write_bytes(data[:cut])
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged or truncated"):
        _ = hf.tensors


def test_a_git_lfs_pointer_is_told_apart(tmp_path):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    hf = folder(tmp_path / "m", {"config.json": CONFIG, "model.safetensors": pointer})
    with pytest.raises(CheckpointError, match="git lfs pull"):
        _ = hf.tensors


def test_shards(tmp_path):
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    hf = folder(tmp_path / "m", {"config.json": CONFIG, "model.safetensors.index.json": index})
    with pytest.raises(CheckpointError, match=r"lacks 1.safetensors, 2.safetensors"):
        _ = hf.tensors
    save_file({"a": torch.zeros(1)}, hf.path / "1.safetensors")
    save_file(
        {"c": torch.ones(1)}, hf.path / "2.safetensors"
    )  # which tensors an index names is nothing to transformers
    assert {name: tensor.item() for name, tensor in hf.tensors.items()} == {"a": 0, "c": 1}


@pytest.mark.parametrize("named", ["own.safetensors", "deep/own.safetensors", "own.safetensors.index.json"])
def test_weights_that_the_configuration_names_are_read_before_others(named, tmp_path):
    files = {"config.json": {**CONFIG, "transformers_weights": named}}
    hf = folder(tmp_path / "m", {**files, "own.safetensors.index.json": {"weight_map": {"a": "deep/own.safetensors"}}})
    with pytest.raises(CheckpointError, match=f"deep/own.safetensors|{named}"):
        _ = hf.tensors
    (hf.path / "deep").mkdir()
    for value, file in enumerate(("model.safetensors", "deep/own.safetensors", "own.safetensors")):
        save_file({"a": torch.full((1,), float(value))}, hf.path / file)
    hf = HFFolder(hf.path)
    assert hf.tensors["a"].item() == (2 if named == "own.safetensors" else 1)


def test_weights_that_a_configuration_names_are_those_of_a_model(tmp_path):
    """What a folder is is told by its files; by a configuration alone of what is on the Hub."""
    hf = folder(tmp_path / "m", {"config.json": {**CONFIG, "transformers_weights": "own.safetensors"}})
    assert not ModelFiles.from_path(hf.path).has_weights
    save_file({"a": torch.zeros(1)}, hf.path / "own.safetensors")
    model = ModelFiles.from_path(hf.path)
    assert model.has_weights and not ModelFiles("", config=model.config).has_weights


@pytest.mark.parametrize("named", ["../own.safetensors", "/own.safetensors", "own.bin", "", 1, "absent.safetensors",
                                   "a" * 5000 + ".safetensors", "\0.safetensors"])  # fmt: skip
def test_weights_that_a_configuration_may_not_name(named, tmp_path):
    save_file({"a": torch.zeros(1)}, tmp_path / "own.safetensors")
    hf = folder(tmp_path / "m", {"config.json": {**CONFIG, "transformers_weights": named}})
    save_file({"a": torch.zeros(1)}, hf.path / "model.safetensors")
    with pytest.raises(CheckpointError, match="transformers_weights is "):
        _ = hf.tensors


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_whole_weights_are_read_before_shards_as_transformers_does(name, tmp_path):
    """Shards stay behind where merged weights are saved into the folder of a model."""
    suffix = Path(name).suffix
    index = {"weight_map": {"a": f"shard{suffix}"}}
    hf = folder(tmp_path / "m", {"config.json": CONFIG, f"{name}.index.json": index})
    for value, file in enumerate((f"shard{suffix}", name)):
        save = save_file if suffix == ".safetensors" else torch.save
        save({"a": torch.full((1,), float(value))}, hf.path / file)
    assert hf.tensors["a"].item() == 1


@pytest.mark.parametrize(("others", "found"), [
    ((), torch.bfloat16), ((torch.bfloat16,), torch.bfloat16), ((torch.float32,), torch.float32),
    ((torch.float16,), torch.float32),
])  # fmt: skip
def test_tensors_of_8_bits_are_of_a_type_that_networks_compute_in(others, found):
    dtypes = (torch.float8_e4m3fn, torch.float8_e5m2, *others)
    assert TensorSource.from_tensors({str(dtype): torch.ones(1).to(dtype) for dtype in dtypes}).dtype == found


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": {"a": 1}}, {"weight_map": {"a": "../x"}}, []])
def test_a_damaged_index(tmp_path, index):
    hf = folder(tmp_path / "m", {"config.json": CONFIG, "model.safetensors.index.json": index})
    with pytest.raises(CheckpointError, match=r"index\.json"):
        _ = hf.tensors


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_tensors(tmp_path, zipped):
    hf = folder(tmp_path / "m", {"config.json": CONFIG})
    torch.save({"a": torch.ones(2)}, hf.path / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert hf.tensors["a"].sum() == 2


class Evil:
    def __reduce__(self):
        return (eval, ("open('ran', 'w')",))


def test_a_pickle_never_runs_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hf = folder(tmp_path / "m", {"config.json": CONFIG})
    torch.save({"a": Evil()}, hf.path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="could run code"):
        _ = hf.tensors
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [[1], {"a": 3}, torch.zeros(1)])
def test_a_pickle_of_something_else(tmp_path, value):
    hf = folder(tmp_path / "m", {"config.json": CONFIG})
    torch.save(value, hf.path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="no state dict"):
        _ = hf.tensors


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 cut", b"junk"])
def test_a_truncated_pickle(tmp_path, data):
    hf = folder(tmp_path / "m", {"config.json": CONFIG})
    (hf.path / "pytorch_model.bin").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin is damaged"):
        _ = hf.tensors


def test_a_folder_that_holds_no_model(tmp_path):
    with pytest.raises(CheckpointError, match="is no folder"):
        _ = HFFolder(tmp_path / "gone").config
    with pytest.raises(CheckpointError, match=r"holds no config.json"):
        _ = folder(tmp_path / "a", {}).config
    for i, text in enumerate(["{", "[]", "\x00"]):
        with pytest.raises(CheckpointError, match=r"config.json is damaged"):
            _ = folder(tmp_path / f"b{i}", {"config.json": text}).config
    for i, name in enumerate(["tf_model.h5", "model-00001-of-00002.safetensors", "consolidated.00.pth"]):
        with pytest.raises(CheckpointError, match=f"holds no weights that are read, only {name}; give a folder with"):
            _ = folder(tmp_path / f"c{i}", {"config.json": CONFIG, name: ""}).tensors


def test_generation_defaults():
    config = {"num_beams": 4, "eos_token_id": None, "decoder": {"eos_token_id": 2, "num_beams": 3, "max_length": 9}}
    assert generation_defaults(config) == {"num_beams": 4, "eos_token_id": 2, "max_length": 9}
    file = {"_from_model_config": True, "transformers_version": "5", "max_length": 7, "bos_token_id": None}
    assert generation_defaults(config, file) == {"max_length": 7}, "a generation_config.json stands alone"


def test_a_folder_says_how_an_output_begins_and_ends(tmp_path):
    config = {"eos_token_id": 2, "decoder_start_token_id": 5, "forced_eos_token_id": 2}
    alone = folder(tmp_path / "a", {"config.json": config})
    assert alone.generation == config
    both = folder(tmp_path / "b", {"config.json": config, "generation_config.json": {"bos_token_id": 7}})
    assert both.generation == {"bos_token_id": 7, "decoder_start_token_id": 7, "eos_token_id": None}
    lists = {"decoder_start_token_id": [5], "forced_bos_token_id": [9]}
    assert folder(tmp_path / "c", {"config.json": config | lists}).generation == config | {"forced_bos_token_id": 9}, (
        "as Hugging Face takes lists of one"
    )


# --- checkpoints


def test_checkpoint_round_trip(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    seen = []
    made = write(
        tmp_path / "new" / "out",
        processor_files=[tmp_path / "tokenizer.json"],
        progress=lambda *values: seen.append(values),
    )
    read = Checkpoint.open(tmp_path / "new" / "out")
    assert read == made
    assert (read.family, read.roles, read.generation) == ("toy", {"decoder": "voice"}, {"num_beams": 2})
    assert read.config("decoder") == {"depths": [2, 2]}
    assert read.manifest["dtype"] == "float32"
    assert torch.equal(read.weights("decoder")["matrix"], TENSORS["matrix"])
    assert [p.name for p in read.processor_files] == ["tokenizer.json"]
    assert seen[-1][1] == seen[-1][2] > 0


def test_an_older_checkpoint_is_replaced_and_nothing_else_is(tmp_path):
    write(tmp_path / "out")
    before = contents(tmp_path / "out")
    write(tmp_path / "out")
    assert contents(tmp_path / "out") == before
    write(tmp_path / "out", {"a": torch.zeros(1)})
    assert set(Checkpoint.open(tmp_path / "out").weights("decoder")) == {"a"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="is not replaced"):
        write(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="is a file"):
        write(tmp_path / "mine" / "thesis.txt")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "out"]


@pytest.mark.parametrize(
    "failure", [RuntimeError("broken"), KeyboardInterrupt(), CheckpointError("x"), OSError(28, "No space left")]
)
def test_a_failure_leaves_nothing_behind(tmp_path, failure):
    def read(name):
        raise failure

    layout = {"a": (torch.float32, (1,))}
    roles = {"decoder": RoleWeights("voice", {}, TensorSource(layout, read))}
    expected = CheckpointError if isinstance(failure, OSError) else type(failure)
    with pytest.raises(expected):
        write(tmp_path / "new" / "deep" / "out", roles=roles)
    assert list(tmp_path.iterdir()) == []
    write(tmp_path / "out")
    before = contents(tmp_path)
    with pytest.raises(expected):
        write(tmp_path / "out", roles=roles)
    assert contents(tmp_path) == before


def test_an_output_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written"):
        write(tmp_path / "file" / "out")


def test_an_output_that_is_a_link_keeps_the_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with atomic_dir(tmp_path / "link", lambda p: True, "thing", CheckpointError) as draft:
        (draft / "a").write_text("1")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real" / "a").exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_what_is_no_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match=r"holds no config.json"):
        Checkpoint.open(tmp_path)
    with pytest.raises(CheckpointError, match="convert it first"):
        Checkpoint.open(folder(tmp_path / "hf", {"config.json": CONFIG}).path)
    made = write(tmp_path / "out")
    made.weight_file("decoder").unlink()
    with pytest.raises(CheckpointError, match=r"lacks decoder/rank0.safetensors"):
        Checkpoint.open(made.path)
    manifest = made.manifest | {"format_version": 99}
    (made.path / "config.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match="format version 99"):
        Checkpoint.open(made.path)


def test_a_file_whose_writing_is_interrupted_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("vlm.artifacts.files.os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "new" / "file", b"content")
    assert not any((tmp_path / "new").iterdir())
