"""Downloads with huggingface_hub's real client against a loopback server."""

from __future__ import annotations

import pytest

from tests.unit.artifacts.hub_server import COMMIT, Hub, serve
from vlm.artifacts.hugging_face import hub as hub_module
from vlm.artifacts.hugging_face.hub import CANONICAL, download, is_repo_id, needed_files, repo_id
from vlm.errors import ModelNotFoundError, UnsupportedModelError
from vlm.registry.catalogs import check_files

FILES = {
    "config.json": b'{"model_type": "x"}',
    "generation_config.json": b"{}",
    "preprocessor_config.json": b"{ }",
    "tokenizer.json": b"{  }",
    "model.safetensors": bytes(range(256)) * 4000,
    "pytorch_model.bin": b"never",
    "tf_model.h5": b"never",
    "modeling_evil.py": b"raise SystemExit",
    "README.md": b"#",
    "onnx/model.onnx": b"never",
}
WANTED = {"config.json", "generation_config.json", "preprocessor_config.json", "tokenizer.json", "model.safetensors"}


@pytest.fixture(autouse=True)
def hub_cache(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub_module, "TIMEOUT_SECONDS", 3)


def test_needed_files_prefer_safetensors():
    assert set(needed_files(FILES)) == WANTED
    assert "pytorch_model.bin" in needed_files(set(FILES) - {"model.safetensors"})
    shards = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "pytorch_model.bin"]
    assert needed_files(shards) == ["config.json", *shards[1:3]]
    templates = ["additional_chat_templates/default.jinja", "additional_chat_templates/tool_use.jinja"]
    assert set(needed_files([*FILES, *templates])) == WANTED | {templates[0]}


@pytest.mark.parametrize(("index", "shard"), [("model.safetensors.index.json", "part_1.safetensors"),
                                              ("pytorch_model.bin.index.json", "part_1.bin")])  # fmt: skip
def test_shards_of_any_name_are_fetched(index, shard):
    files = {"config.json": b"{}", index: b"[]", shard: b"1", "README.md": b"#"}
    with serve(Hub("org/model", files, listed={shard: 10**9})) as hub:
        download("org/model", endpoint=hub.url)
        assert hub.fetched() == {"config.json", index, shard}


@pytest.mark.parametrize(("named", "fetched"), [
    ("own.safetensors", {"own.safetensors"}),
    ("own.safetensors.index.json", {"own.safetensors.index.json", "own.safetensors", "model.safetensors"}),
    ("inner/own.safetensors", {"inner/own.safetensors"}),
    ("inner/own.safetensors.index.json", {"inner/own.safetensors.index.json", "inner/shard.safetensors",
                                          "own.safetensors", "model.safetensors"}),
])  # fmt: skip
def test_weights_that_the_configuration_names_are_fetched(named, fetched):
    files = {"config.json": f'{{"transformers_weights": "{named}"}}'.encode(), named: b"[]"}
    files = {**FILES, "own.safetensors": b"1", "inner/shard.safetensors": b"2", **files}
    with serve(Hub("org/model", files, listed={named: 10**9})) as hub:
        folder = download("org/model", endpoint=hub.url)
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        assert found == WANTED - {"model.safetensors"} | fetched
    assert download("org/model", endpoint=hub.url) == folder  # without a network


def test_named_weights_that_are_not_there_are_told():
    files = {**FILES, "other.safetensors": b"1", "config.json": b'{"transformers_weights": "own.safetensors"}'}
    with serve(Hub("org/model", files)) as hub:
        with pytest.raises(ModelNotFoundError, match=r"has no own.safetensors, which its config.json names"):
            download("org/model", endpoint=hub.url)
        assert hub.fetched() == {"config.json"}


def test_files_that_a_family_reads_are_fetched():
    """A catalog of any package may name some (FamilySpec.tokenizer_files)."""
    with serve(Hub("org/model", FILES | {"source.spm": b"s", "target.spm": b"t"})) as hub:
        download("org/model", extra=("source.*",), endpoint=hub.url)
        assert hub.fetched() == WANTED | {"source.spm"}


def test_a_model_in_parts_is_fetched_with_them():
    parts = {"llm/config.json": b"{}", "llm/model-00001-of-00001.safetensors": b"1", "llm/tokenizer.model": b"t",
             "mm_projector/config.json": b"{}", "mm_projector/model.safetensors": b"2"}  # fmt: skip
    others = {"vlm/trainer_state.json": b"never", "runs/config.json": b"never", "README.md": b"#"}
    with serve(Hub("org/parts", {"config.json": b"{}"} | parts | others)) as hub:
        folder = download("org/parts", endpoint=hub.url)
        assert hub.fetched() == {name.rpartition("/")[2] for name in ("config.json", *parts)}
    assert download("org/parts", endpoint=hub.url) == folder, "without a network"
    assert (folder / "llm" / "tokenizer.model").read_bytes() == b"t"


@pytest.mark.parametrize(
    ("name", "is_id"),
    [("a/b", True), ("a/b@v1", True), ("a/b.c-d", True), ("a", False), ("./a/b", False), ("a/b/c", False)],
)
def test_repo_id(name, is_id):
    assert is_repo_id(name) is is_id


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("gpt2", "openai-community/gpt2"), ("t5-small", "google-t5/t5-small"), ("distilgpt2", "distilbert/distilgpt2"),
        ("t5-base@v1", "google-t5/t5-base@v1"), ("a/gpt2", "a/gpt2"), ("no-such", None), ("t5-small/x/y", None),
    ],
)  # fmt: skip
def test_names_without_an_owner(name, full):
    assert repo_id(name) == full


def test_the_cache_of_other_programs_serves_under_the_old_name():
    from huggingface_hub import snapshot_download

    with serve(Hub("gpt2", FILES)) as hub:
        folder = snapshot_download("gpt2", endpoint=hub.url, allow_patterns=sorted(WANTED))
    assert "models--gpt2" in folder
    assert str(download(CANONICAL["gpt2"], endpoint=hub.url)) == folder
    with pytest.raises(ModelNotFoundError, match="google-t5/t5-small could not be fetched"):
        download(CANONICAL["t5-small"], endpoint=hub.url)


@pytest.mark.parametrize(
    ("files", "config", "says"),
    [
        ({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"}, None, "org/model is a PEFT adapter"),
        ({"model_index.json": b"{}", "unet/config.json": b"{}"}, None, "a pipeline of diffusers"),
        ({"m.Q4_0.gguf": b"x", "config.json": b"{}"}, None, "GGUF"),
        (FILES, {"model_type": "llama", "quantization_config": {"quant_method": "hqq", "bits": 4}}, "quantized .hqq"),
        (FILES, {"model_type": "bart", "architectures": ["BartForSequenceClassification"]}, "sorts texts"),
    ],
)
def test_what_is_not_served_is_not_fetched(files, config, says):
    with serve(Hub("org/model", files, config=config)) as hub, pytest.raises(UnsupportedModelError, match=says):
        download("org/model", check=check_files, endpoint=hub.url)
    assert hub.fetched() == set()


def test_downloads_only_what_is_needed_with_progress():
    seen = []
    with serve(Hub("org/model", FILES)) as hub:
        folder = download("org/model", endpoint=hub.url, progress=lambda *call: seen.append(call))
        assert hub.fetched() == WANTED
    assert {p.name for p in folder.iterdir()} == WANTED
    assert folder.name == COMMIT
    assert (folder / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    total = sum(len(FILES[name]) for name in WANTED)
    assert seen[-1] == ("Downloading org/model", total, total)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


def test_broken_transfer_resumes(monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 50_000)  # what has arrived is kept in units of it
    data = FILES["model.safetensors"]
    with serve(Hub("org/model", FILES, break_after={"model.safetensors": 200_000})) as hub:
        for _ in range(3):  # the client itself may resume; if it gives up, the next call must
            try:
                folder = download("org/model", endpoint=hub.url)
                break
            except ModelNotFoundError:
                continue
        assert (folder / "model.safetensors").read_bytes() == data
        ranges = [r for _, path, r in hub.requests if path.endswith("model.safetensors") and r]
        assert ranges and int(ranges[-1].removeprefix("bytes=").rstrip("-")) > 0


def test_without_network_the_earlier_download_serves():
    with serve(Hub("org/model", FILES)) as hub:
        folder = download("org/model", endpoint=hub.url)
    assert download("org/model", endpoint=hub.url) == folder


def test_without_network_and_cache():
    with serve(Hub("org/model", FILES)) as hub:
        pass
    with pytest.raises(ModelNotFoundError, match=r"org/model could not be fetched .* check the network"):
        download("org/model", endpoint=hub.url)


@pytest.mark.parametrize(
    ("repo_id", "hub", "says"),
    [
        ("org/other", Hub("org/model", FILES), "org/other is not there, or is private"),
        ("org/model@v9", Hub("org/model", FILES), "no revision 'v9'"),
        ("org/model", Hub("org/model", FILES, gated=True), "permission"),
        ("org/model", Hub("org/model", {"README.md": b""}), "no config.json"),
        ("org/model", Hub("org/model", {"config.json": b"{}", "tf_model.h5": b""}), "no model.safetensors"),
    ],
)
def test_refusals_are_one_sentence(repo_id, hub, says):
    with serve(hub), pytest.raises(ModelNotFoundError, match=says) as caught:
        download(repo_id, endpoint=hub.url)
    assert "\n" not in str(caught.value)
    assert hub.fetched() <= {"config.json"}


BARE = {"config.json": b"{}", "model.safetensors": b"w" * 100}


@pytest.mark.parametrize("place", ["../../../../x/", "/x/", "a/../../../../x/", "..\\..\\x/", "./../x/"])
def test_names_that_lead_out_of_the_cache(place, tmp_path):
    """The client refuses them; ours is the sentence."""
    files = {"config.json": b"{}", f"{place}config.json": b"{}", f"{place}model.safetensors": b"x"}
    with serve(Hub("org/model", files)) as hub, pytest.raises(ModelNotFoundError, match=r"cannot be used .Invalid"):
        download("org/model", endpoint=hub.url)
    assert {path.name for path in tmp_path.iterdir()} <= {"hub"}


def test_names_of_any_length_are_left_out(monkeypatch):
    with serve(Hub("org/model", BARE | {f"tokenizer{'x' * 5000}.md": b"{}"})) as hub:
        assert {path.name for path in download("org/model", endpoint=hub.url).iterdir()} == set(BARE)
    monkeypatch.setattr(hub_module, "MOST_FILES", 5)
    with (
        serve(Hub("org/many", BARE | {f"tokenizer{i}.json": b"{}" for i in range(9)})) as hub,
        pytest.raises(ModelNotFoundError, match="lists 11 files to fetch, the limit is 5"),
    ):
        download("org/many", endpoint=hub.url)


def test_sizes_of_small_files():
    with (
        serve(Hub("org/model", BARE, listed={"config.json": 10**10})) as hub,
        pytest.raises(ModelNotFoundError, match=r"config.json of 10,000,000,000 bytes, which is no weights"),
    ):
        download("org/model", endpoint=hub.url)


@pytest.mark.parametrize("name", BARE)
def test_files_that_are_longer_than_listed(name, tmp_path):
    """The client fetches what a file's own headers announce."""
    with (
        serve(Hub("org/model", BARE, announced={name: 10**10})) as hub,
        pytest.raises(ModelNotFoundError, match="more than the listed 102 bytes came"),
    ):
        download("org/model", endpoint=hub.url)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 2**25


@pytest.mark.parametrize("where", ["file:///etc/passwd", "gopher://x/y", "data:,x"])
def test_files_elsewhere(where):
    with serve(Hub("org/model", BARE, redirect=where)) as hub, pytest.raises(ModelNotFoundError, match="could not be"):
        download("org/model", endpoint=hub.url)


@pytest.mark.parametrize("answer", [
    [3], 3, {"x": 1}, {"id": "x", "siblings": 3}, {"id": "x", "siblings": [3]},
    {"id": "x", "siblings": [{"rfilename": 5}]}, {"id": "x", "config": [3], "siblings": [{"rfilename": "config.json"}]},
    {"id": "x", "siblings": [{"rfilename": "config.json", "size": "x"}, {"rfilename": "model.safetensors"}]},
], ids=range(8))  # fmt: skip
def test_answers_of_wrong_types(answer):
    with (
        serve(Hub("org/model", BARE, answer=answer)) as hub,
        pytest.raises(ModelNotFoundError, match="answer about the model org/model cannot be used"),
    ):
        download("org/model", check=check_files, endpoint=hub.url)


def test_commits_that_lead_out_of_the_cache(tmp_path):
    with (
        serve(Hub("org/model", BARE, commit="../../../../x")) as hub,
        pytest.raises(ModelNotFoundError, match=r"cannot be used .Invalid pointer path"),
    ):
        download("org/model", endpoint=hub.url)
    assert {path.name for path in tmp_path.iterdir()} <= {"hub"}
