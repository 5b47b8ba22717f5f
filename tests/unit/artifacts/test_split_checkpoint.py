"""Checkpoints that are split among ranks on disk: their engines have the files of those that a build has cut."""

from __future__ import annotations

import json
import threading

import pytest
import torch

from tests.kits.cli_kit import call
from tests.kits.models.engines import engine_dir
from tests.kits.models.families import MODELS
from tests.kits.quantized_folders import quantized_checkpoint
from vlm.artifacts import weights
from vlm.artifacts.native.checkpoint import Checkpoint
from vlm.build.builder import build_engine
from vlm.build.from_model import build_model, convert_model
from vlm.config import BuildConfig
from vlm.convert.split import split_checkpoint
from vlm.errors import CheckpointError, ConfigError, InputError, VlmError
from vlm.layers.quant.methods import METHODS

LAYOUTS = [{"tp_size": 2}, {"pp_size": 2}, {"tp_size": 2, "pp_size": 2}, {"tp_size": 4}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, Checkpoint]:
    """Checkpoints by family."""
    folder = tmp_path_factory.mktemp("whole")
    for name in ("t5", "llama", "llava"):
        engine_dir(MODELS[name](), folder / name)
    return {name: Checkpoint.open(folder / name / "checkpoint") for name in ("t5", "llama", "llava")}


@pytest.fixture
def halves(whole, tmp_path) -> Checkpoint:
    return split_checkpoint(whole["t5"], tmp_path / "halves", BuildConfig(tp_size=2))


@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", ["t5", "llama", "llava"])
def test_the_engine_is_that_of_the_whole_checkpoint(whole, tmp_path, name, sizes):
    path = convert_model(whole[name].path, tmp_path / "split", **sizes)
    build = BuildConfig(dtype="bfloat16", **sizes)
    split = build_engine(Checkpoint.open(path), tmp_path / "a", build, workers=3)
    cut = build_engine(whole[name], tmp_path / "b", build)
    assert split.manifest == cut.manifest  # the hashes of all files among the rest
    for role in whole[name].roles:
        assert len(list((path / role).glob("rank*"))) == (1 if role == "visual" else build.num_ranks)


@pytest.mark.parametrize("method", METHODS)
def test_quantized_weights_are_split_on_disk(whole, tmp_path, method):
    options = {"group_size": 4} if method.startswith("int4") else {}
    small = quantized_checkpoint(whole["t5"], tmp_path / "small", method, **options)
    split = split_checkpoint(small, tmp_path / "split", BuildConfig(tp_size=2))
    engines = [build_engine(each, tmp_path / each.path.stem / "engine", BuildConfig(tp_size=2))
               for each in (split, small)]  # fmt: skip
    assert engines[0].manifest == engines[1].manifest and engines[0].manifest.quantization == method


def test_a_folder_is_converted_and_split_at_once(whole, tmp_path):
    folder = whole["llama"].path.parent / "hf"
    found = Checkpoint.open(convert_model(folder, tmp_path / "split", tp_size=2))
    again = split_checkpoint(whole["llama"], tmp_path / "again", BuildConfig(tp_size=2))
    assert found.manifest == again.manifest and found.mapping == {"tp": 2, "pp": 1}
    for rank in range(2):
        assert found.weight_file("decoder", rank).read_bytes() == again.weight_file("decoder", rank).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "split"]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        ({}, "is split for --tp-size 2, the build asks for tp_size 1, pp_size 1; run vlm build with --tp-size 2, or"),
        ({"tp_size": 4}, "the build asks for tp_size 4, pp_size 1"),
        ({"tp_size": 2, "pp_size": 2}, "the build asks for tp_size 2, pp_size 2"),
        ({"tp_size": 2, "quantization": "int8"}, "are quantized (int8) before they are cut; build from"),
    ],
    ids=str,
)
def test_a_build_that_would_have_to_join_what_is_split(halves, tmp_path, build, words):
    with pytest.raises(ConfigError) as caught:
        build_engine(halves, tmp_path / "engine", BuildConfig(**build))
    assert words in str(caught.value) and not (tmp_path / "engine").exists()


def test_what_cannot_be_split(whole, halves, tmp_path):
    cases = [
        (whole["t5"], {"tp_size": 8}, ConfigError, "cannot be split among 8 ranks; run the model on fewer GPUs"),
        (whole["t5"], {"pp_size": 9}, ConfigError, "cannot be cut into 9 pipeline stages; build with pp_size"),
        (whole["t5"], {"tp_size": 0}, ConfigError, "tp_size is 0"),
        (whole["t5"], {}, InputError, "is converted already (checkpoint)"),
        (halves, {"tp_size": 2}, InputError, "is split already; give the whole model"),
        (whole["t5"], {"tp_size": 2, "tokenizer": "moses"}, InputError, "`tokenizer` is for"),
    ]
    for checkpoint, options, kind, words in cases:
        with pytest.raises(kind) as caught:
            convert_model(checkpoint.path, tmp_path / "out", **options)
        assert words in str(caught.value), options
    assert [path.name for path in tmp_path.iterdir()] == ["halves"]


def test_what_is_there_is_said_before_a_conversion(whole, tmp_path, monkeypatch):
    monkeypatch.setattr("vlm.build.from_model.convert_folder", None)
    (tmp_path / "mine").write_text("")
    with pytest.raises(CheckpointError, match="mine is a file; the checkpoint of vlm needs a directory"):
        convert_model(whole["t5"].path.parent / "hf", tmp_path / "mine", tp_size=2)


def test_a_rank_that_is_missing_or_another_rank_s(halves, tmp_path):
    first, second = halves.weight_file("decoder", 0), halves.weight_file("decoder", 1)
    content = second.read_bytes()
    second.unlink()
    with pytest.raises(CheckpointError, match=r"lacks decoder/rank1\.safetensors; convert it again"):
        Checkpoint.open(halves.path)
    second.write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match=r"decoder/rank1\.safetensors is damaged or truncated"):
        build_engine(halves, tmp_path / "engine", BuildConfig(tp_size=2))
    second.write_bytes(content)
    weights.write_tensors(first, weights.TensorSource.from_tensors({"head.weight": torch.zeros(2)}))
    with pytest.raises(CheckpointError, match=r"decoder/rank0\.safetensors does not fit its config\.json"):
        build_engine(halves, tmp_path / "engine", BuildConfig(tp_size=2))


@pytest.mark.parametrize(
    "mapping",
    [
        {"tp": 10**12, "pp": 1},
        {"tp": 0, "pp": 1},
        {"tp": 2},
        [2, 1],
        {"tp": "2", "pp": 1},
        {"tp": 2, "pp": 1, "encoder_tp": 2},
        {"tp": 2, "pp": 1, "encoder_tp": 0},
    ],
)
def test_a_mapping_that_no_conversion_writes(halves, mapping):
    values = {**json.loads((halves.path / "config.json").read_text()), "mapping": mapping}
    (halves.path / "config.json").write_text(json.dumps(values))
    with pytest.raises(CheckpointError, match=r"files of the ranks that its config\.json names; convert it again"):
        Checkpoint.open(halves.path)


def test_values_that_the_type_cannot_hold_are_found_in_every_file(whole, tmp_path):
    split = split_checkpoint(whole["t5"], tmp_path / "split", BuildConfig(tp_size=2))
    last = {name: tensor.clone() for name, tensor in split.weights("decoder", 1).items()}
    name = max(last, key=lambda name: last[name].numel())
    last[name].view(-1)[-1] = 1e30
    weights.write_tensors(split.weight_file("decoder", 1), weights.TensorSource.from_tensors(last))
    with pytest.raises(CheckpointError, match=f"decoder weight {name} holds values that float16 cannot"):
        build_engine(split, tmp_path / "engine", BuildConfig(dtype="float16", tp_size=2), workers=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["split"]


def test_workers_write_files_at_the_same_time(whole, tmp_path, monkeypatch):
    """Two files that wait for each other: one after the other they would never be there."""
    meeting, write = threading.Barrier(2, timeout=60), weights.write_hashed

    def meet(path, *arguments):
        if path.parent.name == "decoder":
            meeting.wait()
        return write(path, *arguments)

    monkeypatch.setattr(weights, "write_hashed", meet)
    build_model(whole["llama"].path, tmp_path / "engine", BuildConfig(tp_size=2), workers=2)
    assert meeting.broken is False


def test_the_command_line(whole, halves, tmp_path):
    found = call("convert", whole["t5"].path, "-o", tmp_path / "split", "--tp-size", 2)
    assert found.exit_code == 0 and found.stdout.strip() == str(tmp_path / "split")
    described = json.loads(call("inspect", tmp_path / "split", "--json").stdout)
    assert described["mapping"] == {"tp": 2, "pp": 1} and described["next"].endswith("split.engine --tp-size 2")
    parts = json.loads(call("inspect", whole["t5"].path, "--json").stdout)["roles"]
    assert {role: each["parameters"] for role, each in described["roles"].items()} == {
        role: each["parameters"] for role, each in parts.items()
    }
    build = ("build", tmp_path / "split", "-o", tmp_path / "engine", "--tp-size", 2)
    assert call(*build, "--workers", 2).exit_code == 0
    for arguments, words in (
        ((*build, "--workers", 0), "--workers is 0; it must be at least 1"),
        (build[:-2], "the build asks for --tp-size 1, --pp-size 1; run vlm build with --tp-size 2"),
        (("convert", whole["t5"].path, "-o", tmp_path / "c", "--pp-size", 9), "build with --pp-size"),
        (("quantize", tmp_path / "split", "-o", tmp_path / "q", "--format", "int8"), "split among ranks already"),
        (
            ("summarize", "--model", tmp_path / "split", "hello"),
            "run vlm build with --tp-size 2, or build from the whole",
        ),
    ):
        refused = call(*arguments)
        assert refused.exit_code == 2 and words in " ".join(refused.stderr.split()), refused.stderr


def test_a_whole_checkpoint_may_be_replaced_by_its_parts(whole, tmp_path):
    copy = split_checkpoint(whole["llama"], tmp_path / "a", BuildConfig())
    assert not copy.is_split
    convert_model(copy.path, copy.path, tp_size=2)
    assert Checkpoint.open(copy.path).is_split
    with pytest.raises(VlmError):
        build_engine(Checkpoint.open(copy.path), tmp_path / "engine", BuildConfig())
