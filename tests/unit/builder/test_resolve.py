"""A model's name -> an engine directory in the cache."""

from __future__ import annotations

import errno
import functools
import json
import multiprocessing
import subprocess
import sys

import pytest
from safetensors.torch import load_file, save_file

from tests.unit.artifacts.hub_server import Hub, serve
from tests.unit.builder import artifact_kit
from vlm.artifacts.hugging_face.hub import download
from vlm.artifacts.native.engine_dir import EngineDir
from vlm.build import engine_cache
from vlm.build.builder import build_engine
from vlm.build.locate import locate, packaged_models
from vlm.build.store import resolve
from vlm.config import BuildConfig
from vlm.convert.folder import convert_folder
from vlm.errors import ConfigError, EngineError, LimitError, ModelNotFoundError


@pytest.fixture(autouse=True)
def toy(monkeypatch, tmp_path):
    artifact_kit.install(monkeypatch)
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def hf(tmp_path):
    return artifact_kit.write_hf(tmp_path / "toy-model")


@pytest.fixture
def builds(monkeypatch):
    """Names of the engines built, as they are built."""
    seen, build = [], engine_cache._build
    monkeypatch.setattr(engine_cache, "_build", lambda s, out, *rest: (seen.append(out.name), build(s, out, *rest)))
    return seen


def test_hf_folder_is_built_once(hf, builds, tmp_path):
    path = resolve(hf)
    assert resolve(str(hf)) == path and len(builds) == 1
    engine = EngineDir.open(path)
    assert engine.family == "toy" and engine.build == BuildConfig(max_seq_len=16, max_encoder_input_len=6)
    assert path.parent == tmp_path / "cache" / "engines" and path.name.startswith("toy-model-float32-")
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # the checkpoint between is gone


def test_options_and_content_are_part_of_the_key(hf, builds):
    first = resolve(hf)
    assert resolve(hf, dtype="bfloat16") != first
    assert resolve(hf, on="cuda") == resolve(hf, dtype="bfloat16")
    assert resolve(hf, max_seq_len=8) != first
    assert len(builds) == 3
    (hf / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert EngineDir.open(resolve(hf)).generation["eos_token_id"] == 3
    (hf / "notes.txt").write_text("of no account")
    resolve(hf)
    assert len(builds) == 4


@pytest.mark.parametrize("place", ["model.safetensors.index.json", "config.json"])
def test_weights_of_any_name_are_part_of_the_key(place, hf):
    tensors = load_file(hf / "model.safetensors")
    (hf / "model.safetensors").rename(hf / "part.safetensors")
    named = {"weight_map": dict.fromkeys(tensors, "part.safetensors"), "transformers_weights": "part.safetensors"}
    config = json.loads((hf / place).read_text()) if (hf / place).exists() else {}
    (hf / place).write_text(json.dumps(config | named))
    first = resolve(hf)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, hf / "part.safetensors")
    assert resolve(hf) != first


def test_checkpoint_and_cache_dir(hf, tmp_path):
    checkpoint = convert_folder(hf, tmp_path / "checkpoint")
    path = resolve(checkpoint.path, cache_dir=tmp_path / "elsewhere")
    assert path.is_relative_to(tmp_path / "elsewhere") and EngineDir.open(path).family == "toy"


def test_engine_is_used_as_it_is(hf, tmp_path):
    checkpoint = convert_folder(hf, tmp_path / "checkpoint")
    engine = build_engine(checkpoint, tmp_path / "engine", BuildConfig(max_batch_size=4, max_seq_len=8))
    assert resolve(engine.path) == engine.path
    assert resolve(engine.path, on="cuda", max_batch_size=2, max_seq_len=8) == engine.path
    assert not (tmp_path / "cache").exists()
    with pytest.raises(LimitError, match=r"max_seq_len 8, asked is max_seq_len 9; rebuild it: .*--max-seq-len 9"):
        resolve(engine.path, max_seq_len=9)
    with pytest.raises(EngineError, match=r"dtype float32, asked is dtype float16; .*--dtype float16"):
        resolve(engine.path, dtype="float16")
    assert resolve(engine.path, tp_size=1, pp_size=1) == engine.path
    with pytest.raises(EngineError, match=r"tp_size 1, asked is tp_size 2; rebuild it: .*--max-seq-len 8.*--tp-size 2"):
        resolve(engine.path, tp_size=2)


def test_packaged_name_comes_first(hf, monkeypatch, tmp_path):
    monkeypatch.setattr("vlm.packaged.ASSETS", tmp_path)
    assert packaged_models() == {"toy-model": hf}
    assert locate("toy-model").path == hf
    assert EngineDir.open(resolve("toy-model")).family == "toy"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no-such-model", "does not exist"),
        ("other", "holds neither"),
        ("file.txt", "is a file"),
        ("a/b/c", "exist"),
        ("x" * 300, "exist"),
    ],
)
def test_unknown_model(name, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vlm.packaged.ASSETS", tmp_path)
    artifact_kit.write_hf(tmp_path / "packed")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.md").write_text("x")
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(ModelNotFoundError, match=rf"{says}.*; give a packaged name \(packed\), a Hub id"):
        resolve(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ck/t5x", "model 'ck/t5x' does not exist: the folder ck has no t5x, and the Hub's model ck/t5x could not"),
        ("nemo/none.nemo", "model 'nemo/none.nemo' does not exist: there is no such file, and the Hub's model nemo"),
        ("org/t5-v1.1", "the Hub's model org/t5-v1.1 could not"),
    ],
)
def test_paths_that_look_like_the_hubs(name, says, hf, monkeypatch, tmp_path):
    """The Hub is asked all the same; where it has the model, that is what the name stands for."""

    def fails(repo, **_):
        raise ModelNotFoundError(f"the Hub's model {repo} could not be fetched.")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "ck").mkdir()
    monkeypatch.setattr(engine_cache.hub, "download", fails)
    with pytest.raises(ModelNotFoundError) as error:
        locate(name)
    assert str(error.value).startswith(says)
    monkeypatch.setattr(engine_cache.hub, "download", lambda repo, **_: hf)
    assert locate(name).path == hf


def test_names_without_an_owner_are_the_hubs(hf, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(engine_cache.hub, "download", lambda name, **_: asked.append(name) or hf)
    monkeypatch.chdir(tmp_path)
    assert locate("t5-small").path == hf and asked == ["google-t5/t5-small"]
    hf.rename(tmp_path / "gpt2")
    assert locate("gpt2").path.resolve() == tmp_path / "gpt2" and len(asked) == 1  # a folder comes first


def test_bad_build_options(hf):
    with pytest.raises(ConfigError, match="dtype is 'int3'"):
        resolve(hf, dtype="int3")
    with pytest.raises(ConfigError, match="max_seq_len is 17, this model allows at most 16"):
        resolve(hf, max_seq_len=17)


def test_hub_id(hf, monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    files = {p.name: p.read_bytes() for p in hf.iterdir()}
    with serve(Hub("org/toy", files)) as hub:
        # huggingface_hub reads HF_ENDPOINT when it is imported, which may be long ago
        monkeypatch.setattr("vlm.artifacts.hugging_face.hub.download", functools.partial(download, endpoint=hub.url))
        path = resolve("org/toy")
        assert EngineDir.open(path).family == "toy"
        assert hub.fetched() == {"config.json", "tokenizer.json", "model.safetensors"}


def test_nothing_of_the_folder_is_executed(hf, tmp_path):
    flag = tmp_path / "executed"
    (hf / "modeling_evil.py").write_text(f"open({str(flag)!r}, 'w')\nclass Evil: pass\n")
    config = {
        **artifact_kit.CONFIG,
        "auto_map": {"AutoConfig": "modeling_evil.Evil", "AutoModel": "modeling_evil.Evil"},
    }
    (hf / "config.json").write_text(json.dumps(config))
    path = resolve(hf)
    assert not flag.exists() and not list(path.rglob("*.py"))


def test_interrupted_build_leaves_nothing(hf, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve(hf, progress=interrupt)
    assert list((tmp_path / "cache" / "engines").iterdir()) == []
    assert EngineDir.open(resolve(hf)).family == "toy"


def test_leftovers_of_a_killed_build_and_damaged_engines_are_replaced(hf, builds):
    path = resolve(hf)
    leftover = path.parent / f".{path.name}.0123.tmp"
    leftover.mkdir()
    weights = path / "decoder" / "rank0.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert resolve(hf) == path and EngineDir.open(path).family == "toy"
    assert len(builds) == 2 and not leftover.exists()


def test_cache_that_cannot_be_written(hf, tmp_path):
    (tmp_path / "blocked").write_text("a file")
    with pytest.raises(EngineError, match=r"the cache .*blocked cannot be written: .*; set VLM_CACHE"):
        resolve(hf, cache_dir=tmp_path / "blocked")


def test_a_cache_without_room(hf, tmp_path, monkeypatch):
    def write(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("vlm.artifacts.weights.write_tensors", write)
    with pytest.raises(EngineError, match=r"the cache .*small cannot be written: No space .*; set VLM_CACHE to"):
        resolve(hf, cache_dir=tmp_path / "small")


def _resolve_toy(hf, together, results):
    artifact_kit.install(pytest.MonkeyPatch())
    seen = []
    together.wait(300)
    path = resolve(hf, progress=lambda text, *_: seen.append(text))
    results.put((str(path), any("Writing" in text for text in seen)))


def test_two_processes_build_once(hf):
    context = multiprocessing.get_context("spawn")
    together, results = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_resolve_toy, args=(hf, together, results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=300) for _ in workers]
    for worker in workers:
        worker.join()
    assert len({path for path, _ in found}) == 1
    assert sum(built for _, built in found) == 1


def test_import_is_light():
    heavy = ("torch", "transformers", "huggingface_hub")
    code = f"import sys, vlm.build.store; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
