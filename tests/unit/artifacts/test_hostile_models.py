"""Model folders that were made to stop a conversion: one sentence, soon, in bounded memory, and nothing is run."""

from __future__ import annotations

import json
import os
import pickle
import random
import socket
import struct
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from tests.kits import hostile_kit as kit
from tests.kits.cli_kit import call
from visual_engines.images.image_processors import CLIP
from vlm.artifacts import archives
from vlm.artifacts.archives import LARGEST_READ, unpacked
from vlm.artifacts.files import load_json
from vlm.artifacts.hugging_face.hf_folder import HFFolder, read_pickle
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.artifacts.native.manifest import Manifest
from vlm.build.builder import build_engine
from vlm.build.kinds import kind_of
from vlm.build.locate import packaged_models
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.errors import CheckpointError, EngineError, VlmError
from vlm.limits import MAX_JSON_BYTES
from vlm.processing.media.image_processor import ImageProcessor

HUGE = 10**9


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))


def folder_of(tmp_path: Path, name: str = "mini-t5", **changed: bytes) -> Path:
    """A packaged model's folder, with files of other content."""
    folder = tmp_path / "model"
    folder.mkdir()
    for file in packaged_models()[name].iterdir():
        (folder / file.name).symlink_to(file)
    for stem, content in changed.items():
        file = folder / f"{stem}.json"
        file.unlink(missing_ok=True)
        file.write_bytes(content)
    return folder


def with_value(name: str, path: str, value: object) -> bytes:
    config = json.loads((packaged_models()[name] / "config.json").read_text())
    *parts, last = path.split(".")
    part = config
    for key in parts:
        part = part[key]
    part[last] = value
    return json.dumps(config).encode()


def refused(folder: Path) -> str:
    """The one sentence that a conversion ends with, which leaves nothing behind."""
    with pytest.raises(VlmError) as error:
        convert_folder(folder, folder.parent / "out")
    assert "\n" not in str(error.value) and not (folder.parent / "out").exists()
    return str(error.value)


@pytest.mark.parametrize(("model", "path"), [
    ("mini-t5", "num_layers"), ("mini-t5", "num_decoder_layers"), ("mini-llava", "text_config.num_hidden_layers"),
    ("mini-llava", "vision_config.num_hidden_layers"), ("mini-nougat", "decoder.decoder_layers"),
    ("mini-nougat", "encoder.depths"), ("mini-blip2", "qformer_config.num_hidden_layers"),
])  # fmt: skip
def test_layers_without_number(model, path, tmp_path):
    value = [HUGE, 2] if path.endswith("depths") else HUGE
    assert "layers, the limit is 1,024" in refused(folder_of(tmp_path, model, config=with_value(model, path, value)))


@pytest.mark.parametrize("value", [HUGE, 10**30, -1, 0, float("nan"), "x", [HUGE], {}, True], ids=str)
@pytest.mark.parametrize("path", ["d_model", "vocab_size", "num_heads", "relative_attention_num_buckets"])
def test_sizes_of_all_kinds(path, value, tmp_path):
    assert refused(folder_of(tmp_path, config=with_value("mini-t5", path, value)))


@pytest.mark.parametrize(("path", "value"), [
    ("dense_act_fn", []), ("bos_token_id", float("nan")), ("d_ff", 10**30),
])  # fmt: skip
def test_values_of_other_types(path, value, tmp_path):
    said = refused(folder_of(tmp_path, config=with_value("mini-t5", path, value)))
    assert "configuration" in said


@pytest.mark.parametrize(("content", "says"), [
    (b"[" * 100_000, "nested too deeply"), (b'{"a":' * 100_000, "nested too deeply"), (b"\xef\xbb\xbf{}", "BOM"),
    ('{"model_type": "t5"}'.encode("utf-16"), "byte 1 is not UTF-8"), (b"{}\xff" * 9, "byte 3 is not UTF-8"),
    (b"[]", "a JSON list, expected is an object; correct it there, or download or make the file again."),
    (b'{"x": ' + b"9" * 5000 + b"}", "a number in it has too many digits"),
    (b'{"x":\n 1,,', "(Expecting property name enclosed in double quotes in line 2 at column 4); correct it there, or"),
    (b'{"x": "y', "no valid JSON (Unterminated string starting at column 7); correct it there, or download"),
    (b'{"x" 1}', "no valid JSON (Expecting ':' delimiter at column 6); correct it there, or download"),
    (b" " * (MAX_JSON_BYTES + 1), "more than 16,777,216 bytes"),
], ids=["lists", "objects", "bom", "utf-16", "bytes", "list", "digits", "lines", "text", "line", "large"])  # fmt: skip
def test_what_is_no_configuration(content, says, tmp_path):
    folder = folder_of(tmp_path, config=content)
    assert says in refused(folder)
    assert kind_of(folder) == "hf"


def special(path: Path, kind: str) -> None:
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.path.relpath(path))
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "loop", "folder"])
@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json"])
def test_what_is_no_file(name, kind, tmp_path, monkeypatch):
    folder = folder_of(tmp_path)
    monkeypatch.chdir(folder)  # names of sockets are short
    special(folder / name, kind)
    if kind == "loop" and name == "generation_config.json":
        return  # as if it were not there
    said = refused(folder)
    assert name in said
    assert call("convert", folder, "-o", tmp_path / "out").exit_code == 2
    assert call("inspect", folder).exit_code in (0, 2)


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("verb", [("run", "--text", "a", "--model"), ("convert", "-o", "out"), ("inspect",)], ids=str)
def test_a_model_that_is_no_file(verb, kind, tmp_path):
    os.mkfifo(tmp_path / "x.tar.gz")
    result = call(*verb, tmp_path / "x.tar.gz" if kind == "pipe" else "/dev/zero")
    assert result.exit_code == 2 and "vlm: " in result.stderr and "internal" not in result.stderr


def safetensors(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(shape: list, end: int, start: int = 0, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize("content", [
    safetensors(b"{}", length=2**63), safetensors(b"{}", length=10**12), safetensors(b"{}", length=99_000_000),
    safetensors(json.dumps({"a": entry([2**33, 2**33], 4)}).encode(), bytes(4)),
    safetensors(json.dumps({"a": entry([-1], 4)}).encode(), bytes(4)),
    safetensors(json.dumps({"a": entry([1], 4), "b": entry([1], 4)}).encode(), bytes(4)),
    safetensors(json.dumps({"a": entry([1], 2**62)}).encode(), bytes(4)),
    safetensors(json.dumps({"a": entry([1], 4, dtype="F999")}).encode(), bytes(4)),
    safetensors(b"[" * 100_000), safetensors(b'{"a":1}'), b"", b"\0" * 7,
])  # fmt: skip
def test_headers_of_safetensors(content, tmp_path):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors is damaged or truncated" in refused(folder)


@pytest.mark.parametrize("shard", ["../../x", "/etc/passwd", "a/../../x", "", ".", ".."])
def test_shards_elsewhere(shard, tmp_path):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").unlink()  # whole weights are read before an index
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    assert refused(folder)


def test_an_index_that_lists_no_shards(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": [1]}))
    assert refused(folder).endswith("it has no weight_map of tensor names to files; fetch it again.")


class Touches:
    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_pickles_run_nothing(tmp_path):
    torch.save({"a": Touches(tmp_path / "ran")}, tmp_path / "x.bin")
    (tmp_path / "y.bin").write_bytes(pickle.dumps({"a": Touches(tmp_path / "ran")}))
    for name in ("x.bin", "y.bin"):
        with pytest.raises(CheckpointError, match="could run code"):
            read_pickle(tmp_path / name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_programs_and_packed_values_are_no_weights(tmp_path):
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "x.bin")
    torch.save({"a": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, tmp_path / "y.bin")
    for name, says in {"x.bin": "is a program of TorchScript's", "y.bin": "is no state dict of tensors"}.items():
        with pytest.raises(CheckpointError, match=says):
            read_pickle(tmp_path / name)


@pytest.mark.slow
def test_zips_that_unpack_to_more_than_they_are(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.bin", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", bytes(2**26))
    setup = "import torch\n"
    setup += "from pathlib import Path\nfrom vlm.artifacts.hugging_face.hf_folder import read_pickle"
    said, megabytes = kit.measured(setup, f"read_pickle(Path({str(tmp_path / 'x.bin')!r}))")
    assert "unpacks to more than its size" in said and megabytes < 50


def test_tensors_that_repeat_a_file(tmp_path):
    torch.save({"a": torch.zeros(1).expand(2**40)}, tmp_path / "x.bin")
    with pytest.raises(CheckpointError, match="repeats its bytes in tensors of many times its size"):
        read_pickle(tmp_path / "x.bin")
    tied = torch.zeros(1000)
    torch.save({"a": tied, "b": tied}, tmp_path / "x.bin")
    assert set(read_pickle(tmp_path / "x.bin")) == {"a", "b"}


def archive(path: Path, members: list[tuple[tarfile.TarInfo, bytes]], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:
        for member, content in members:
            tar.fileobj.write(member.tobuf())  # a size may be claimed alone
            tar.fileobj.write(content + bytes(-len(content) % tarfile.BLOCKSIZE))
    return path


def member(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = size, kind, link
    return info


@pytest.mark.parametrize(("members", "says"), [
    ([(member("model.pt", 2**29), b"")], "unpacks to far more than its size"),
    ([(member(f"{i}"), b"") for i in range(60)], "unpacks to far more than its size"),
    ([(member("../model.pt"), b"")], "lies outside"), ([(member("/model.pt"), b"")], "lies outside"),
    ([(member("model.pt", kind=tarfile.LNKTYPE, link="/etc/passwd"), b"")], "is a link or device"),
    ([(member("model.pt", kind=tarfile.SYMTYPE, link="/etc/passwd"), b"")], "is a link or device"),
    ([(member("model.pt", kind=tarfile.FIFOTYPE), b"")], "is a link or device"),
    ([(member("a"), b""), (member("x" * (LARGEST_READ + 1)), b"")], "one of its headers claims 16,777,"),
], ids=["bomb", "members", "above", "absolute", "hard link", "link", "pipe", "name"])  # fmt: skip
def test_archives(members, says, tmp_path, monkeypatch):
    monkeypatch.setattr("vlm.artifacts.archives.MOST_MEMBERS", 50)
    with pytest.raises(CheckpointError, match=says):
        unpacked(archive(tmp_path / "x.tar.gz", members), lambda name: True)
    nemo = archive(tmp_path / "x.nemo", members)
    with pytest.raises(VlmError) as error:
        convert_folder(nemo, tmp_path / "out")
    assert "\n" not in str(error.value) and not list(tmp_path.glob(".out*"))
    assert not (tmp_path.parent / "model.pt").exists()


def test_an_archive_that_two_processes_unpack_at_once(tmp_path, monkeypatch):
    """The second begins while the first is at a file, and is done before it."""
    content = bytes(range(256)) * 2**14
    path = archive(tmp_path / "x.tar.gz", [(member("model.pt", len(content)), content)])
    file_of, others = archives._file_of, []

    def read(source, size):
        if not others:
            others.append(None)
            part, others[0] = source.read(size), unpacked(path, lambda name: True)
            return part
        return source.read(size)

    def watched(*arguments):
        source = file_of(*arguments)
        return SimpleNamespace(read=partial(read, source))

    monkeypatch.setattr(archives, "_file_of", watched)
    folder = unpacked(path, lambda name: True)
    assert others == [folder] and (folder / "model.pt").read_bytes() == content
    assert {file.name for file in folder.iterdir()} == {"model.pt", archives.DONE}


def test_damage_within_a_file_is_the_archive_s_not_the_cache_s(tmp_path):
    content = random.Random(0).randbytes(2**21)
    path = archive(tmp_path / "x.tar.bz2", [(member("model.pt", len(content)), content)], "w:bz2")
    packed = bytearray(path.read_bytes())
    packed[len(packed) // 2] ^= 0xFF
    path.write_bytes(packed)
    with pytest.raises(CheckpointError, match=r"x\.tar\.bz2 is no tar archive, damaged or truncated"):
        unpacked(path, lambda name: True)
    assert not list((tmp_path / "cache").rglob("*.tmp"))


def test_one_archive_in_another_is_not_unpacked(tmp_path):
    inner = archive(tmp_path / "inner.tar.gz", [(member("model.pt", 2**20), bytes(2**20))]).read_bytes()
    outer = archive(tmp_path / "x.tar.gz", [(member("inner.tar.gz", len(inner)), inner)])
    assert "holds no FairSeq model" in refused(outer)


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Its files; each test writes the manifest again."""
    folder = tmp_path_factory.mktemp("engine")
    checkpoint = convert_folder(packaged_models()["mini-t5"], folder / "checkpoint")
    build_engine(checkpoint, folder / "engine", BuildConfig())
    return folder / "engine"


@pytest.mark.parametrize(("changed", "says"), [
    ({"roles": {"../../x": {"model": "t5", "config": {}}}}, "roles"), ({"roles": []}, "roles"),
    ({"roles": {"encoder": 3}}, "roles"),
    ({"files": {"../../etc/passwd": {"sha256": "", "size": 0}}}, "files"), ({"files": {"/etc/passwd": {}}}, "files"),
    ({"files": 3}, "files"), ({"limits": {"max_batch_size": 10**30, "x": 1}}, "limits"), ({"limits": None}, "limits"),
    ({"family": []}, "family"), ({"built_for": "x"}, "built_for"),
    ({"built_for": {"torch": {"targets": [1]}}}, "built_for"), ({"generation": [1]}, "generation"),
    ({"mapping": {}}, "mapping"), ({"mapping": {"tp": "2", "pp": 1}}, "mapping"),
    ({"mapping": {"tp": 4, "pp": 1, "encoder_tp": 3}}, "mapping"), ({"mapping": {"tp": 1, "pp": 1, "a": 1}}, "mapping"),
    ({"mapping": {"tp": 0, "pp": 1}}, "mapping"), ({"mapping": {"tp": 10**6, "pp": 1}}, "mapping"),  # processes
])  # fmt: skip
def test_manifests_that_were_sealed_again(engine, changed, says, tmp_path):
    """Anybody can compute the hash."""
    values = Manifest.read(engine).to_dict() | changed
    (tmp_path / "x").mkdir()
    Manifest(**values).write(tmp_path / "x")
    with pytest.raises(EngineError, match=rf"manifest\.json.*{says}"):
        EngineDir.open(tmp_path / "x")


def test_a_pipe_in_the_place_of_a_manifest(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    with pytest.raises(EngineError, match=r"manifest\.json cannot be read: it is a pipe"):
        EngineDir.open(tmp_path)
    assert kind_of(tmp_path) is None
    with pytest.raises(OSError, match="it is a pipe"):
        load_json(tmp_path / "manifest.json")


@pytest.mark.parametrize("kind", ["pipe", "device", "loop", "folder"])
def test_run_asks_files_alone_what_has_changed(kind, tmp_path):
    """Before a folder is converted, the engine that was built of it is looked for."""
    folder = folder_of(tmp_path)
    special(folder / "tokenizer.json", kind)
    special(folder / "config.json", kind)
    result = call("run", "--text", "a", "--model", folder)
    assert result.exit_code == 2 and "config.json" in result.stderr and "internal" not in result.stderr


def test_processor_files_are_files(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "tokenizer_config.json").unlink()
    os.mkfifo(folder / "tokenizer_config.json")
    assert all(path.is_file() for path in HFFolder(folder).processor_files)


@pytest.mark.parametrize("size", [HUGE, {"shortest_edge": HUGE}, {"height": 224, "width": float("inf")}], ids=str)
@pytest.mark.parametrize("key", ["size", "crop_size"])
def test_images_scaled_without_end(key, size, tmp_path):
    settings = {"image_processor_type": "CLIPImageProcessor", key: size}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(EngineError, match=r"preprocessor_config\.json scales images to more than 4,096 pixels a side"):
        ImageProcessor.from_dir(tmp_path, [CLIP])


def test_one_tensor_for_many_layers(tmp_path):
    """A config may not count what the weights do not have, however it is spread."""
    folder = folder_of(tmp_path, config=with_value("mini-t5", "num_layers", 90))
    (folder / "model.safetensors").unlink()
    save_file({"shared.weight": torch.zeros(8, 8)}, folder / "model.safetensors")
    assert "do not fit its config.json" in refused(folder)
