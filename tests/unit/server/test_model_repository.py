"""What a model repository's folders and configurations mean."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tritonclient.grpc", reason="the extra triton is not installed")

import vlm
from vlm.config import RuntimeConfig
from vlm.errors import ConfigError, InputError, LimitError, ModelNotFoundError, VlmError
from vlm_app.core import renamed
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository.control import Repositories
from vlm_app.server.repository.loading import Loader
from vlm_app.server.repository.repository import Entry, scan
from vlm_app.server.repository.served_models import ServedModels
from vlm_app.server.repository.service import Services

POLICY = "version_policy {{ specific {{ versions: [{}] }} }} max_batch_size: {}"


@pytest.mark.parametrize(
    ("config", "version", "limit"),
    [
        (None, "12", None),
        ("max_batch_size: 4", "12", 4),
        ("max_batch_size: 0", "12", 1),
        ("version_policy { latest { num_versions: 1 } }", "12", 1),
        (POLICY.format("2, 9, 30", 5), "9", 5),
    ],
)
def test_versions_and_batches_are_as_the_configuration_says(tmp_path, config, version, limit):
    for each in ("2", "9", "12"):
        (tmp_path / "m" / each).mkdir(parents=True)
        (tmp_path / "m" / each / "config.json").write_text("{}")
    if config:
        (tmp_path / "m" / "config.pbtxt").write_text(config)
    entry = scan(str(tmp_path))["m"]
    assert (entry.version, entry.options.build.get("max_batch_size"), entry.fetched()) == (
        version,
        limit,
        tmp_path / "m" / version,
    )


def lora(*pairs: str) -> str:
    return f'parameters {{ key: "lora" value: {{ string_value: "{",".join(pairs)}" }} }}'


def test_adapters_lie_in_their_models_folder(tmp_path):
    ensemble = 'platform: "ensemble" ensemble_scheduling { step { model_name: "engine" } }'
    for file, text in {
        "engine/1/engine/manifest.json": "{}", "engine/config.pbtxt": lora("a=adapters/a", "b=/elsewhere/b"),
        "engine/adapters/a/adapter_config.json": "{}", "whole/1/README": "", "whole/config.pbtxt": ensemble,
        "gone/1/config.json": "{}", "gone/config.pbtxt": lora("c=../../c"),
        "twice/1/config.json": "{}", "twice/config.pbtxt": lora("d=adapters", "whole=adapters"),
        "twice/adapters/adapter_config.json": "{}",
    }.items():  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    repositories = Repositories([str(tmp_path)], Loader())
    repositories.scan()
    entry = repositories.entry("whole")
    folders = entry.local_options().runtime_config().lora_folders
    assert folders == {"a": tmp_path / "engine" / "adapters" / "a", "b": Path("/elsewhere/b")}
    (tmp_path / "engine" / "adapters" / "a" / "adapter_config.json").write_text('{"r": 4}')
    assert scan(str(tmp_path))["whole"].stamp != entry.stamp
    with pytest.raises(ConfigError, match=r"lora names ../c, which is not in .*; put it there"):
        repositories.load("gone")
    with pytest.raises(ConfigError, match="lora names whole, which is something else's name here, too"):
        repositories.load("twice")


def test_each_broken_model_is_one_sentence(tmp_path):
    ensemble = 'platform: "ensemble" ensemble_scheduling {{ step {{ model_name: "{}" }} }}'
    for file, text in {
        "empty/1/notes.txt": "", "unversioned/latest/config.json": "{}", "odd/config.pbtxt": "max_batch_size: many",
        "never/1/config.json": "{}", "never/config.pbtxt": POLICY.format("7", 1), "good/1/config.json": "{}",
        "parts/1/README": "", "parts/config.pbtxt": ensemble.format("gone"), "part/1/engine/manifest.json": "{}",
        "round/1/README": "", "round/config.pbtxt": ensemble.format("parts"),
        "whole/1/README": "", "whole/config.pbtxt": ensemble.format("part"),
    }.items():  # fmt: skip
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    found = scan(str(tmp_path))
    told = {name: str(error) for name, error in found.items() if not isinstance(error, Entry)}
    assert told.keys() == {"empty", "unversioned", "odd", "never", "round"} and isinstance(found["good"], Entry)
    assert found["whole"].fetched() == tmp_path / "part" / "1" / "engine" and "part" not in found
    for name, words in {
        "empty": "holds no engine", "unversioned": "holds no version", "odd": "no model configuration",
        "never": "holds no version", "round": "0 engines",
    }.items():  # fmt: skip
        assert words in told[name] and str(tmp_path / name) in told[name] and told[name].endswith(".")


def test_a_program_of_the_python_backend_is_told_of(tmp_path):
    """FasterTransformer's tokenizer, beside its encoder."""
    (tmp_path / "tokenizer" / "1").mkdir(parents=True)
    (tmp_path / "tokenizer" / "1" / "model.py").write_text("")
    (tmp_path / "tokenizer" / "config.pbtxt").write_text('backend: "python" input { name: "query" }')
    error = scan(str(tmp_path))["tokenizer"]
    assert isinstance(error, VlmError) and "1/model.py is a program of Triton's Python backend" in str(error)


def test_where_all_models_are_unloaded_it_is_told_how_one_is_loaded():
    with pytest.raises(
        ModelNotFoundError, match=r"there is none now: POST /v2/repository/models/NAME/load loads one\.$"
    ):
        Services()["m"]


def test_repositories_that_cannot_be_reached(tmp_path):
    with pytest.raises(InputError, match="holds no files; give a folder of models"):
        scan(str(tmp_path))
    with pytest.raises(InputError, match=r"^the model repository \S+/gone does not exist; give a folder of models"):
        scan(str(tmp_path / "gone"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^the model repository \S+/file is no folder; give a folder of models"):
        scan(str(tmp_path / "file"))
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "manifest.json").write_text("{")
    repositories = Repositories([str(tmp_path)], Loader(LoadOptions(runtime={"device": "cpu"})))
    repositories.scan()
    with pytest.raises(VlmError, match="neither an engine") as caught:
        repositories.load("m")
    kept = repositories.entries["m"]
    assert (type(kept), str(kept), kept.__traceback__) == (type(caught.value), str(caught.value), None)
    assert repositories.loadable == 0


def test_a_model_that_does_not_load_takes_no_share_of_the_memory(monkeypatch):
    shares = []

    def load(model, runtime, **more):
        shares.append(runtime.kv_cache_free_gpu_memory_fraction)
        if model == "broken":
            raise InputError("it is broken.")
        return loaded("mini-t5", runtime=runtime, **more)

    loaded = vlm.load
    monkeypatch.setitem(vlm.__dict__, "load", load)
    loader, freed = Loader(LoadOptions(runtime={"device": "cpu"}), warm=False), []
    monkeypatch.setattr(loader, "freed", lambda: freed.append(len(shares)))
    loader.expect(2)
    with pytest.raises(InputError, match="it is broken"):
        loader.model("broken")
    loader.model("mini-t5")
    assert freed == [1]  # before what comes after it
    assert shares == [RuntimeConfig.kv_cache_free_gpu_memory_fraction / left for left in (2, 1)]


def test_what_does_not_load_is_called_by_its_name_and_as_its_configuration_calls_it(tmp_path, monkeypatch):
    def load(model, **options):
        raise LimitError("max_batch_size is 9 and max_seq_len 8.", settings=("max_batch_size", "max_seq_len"))

    monkeypatch.setitem(vlm.__dict__, "load", load)
    for name, config in {
        "a": 'parameters { key: "threads" value { string_value: "0" } }',
        "b": "max_batch_size: 9",
    }.items():
        (tmp_path / name / "1").mkdir(parents=True)
        (tmp_path / name / "1" / "config.json").write_text("{}")
        (tmp_path / name / "config.pbtxt").write_text(config)
    told, before = (
        [],
        renamed.flags.set({n: f"--{n.replace('_', '-')}" for n in ("threads", "max_batch_size", "max_seq_len")}),
    )
    try:
        with pytest.raises(InputError, match=r"^no model of .* could be loaded\.$"):
            options = LoadOptions(runtime={"device": "cpu"})
            ServedModels({}, [str(tmp_path)], options).load(lambda error: told.append(renamed.with_flags(error)))
    finally:
        renamed.flags.reset(before)
    assert told == [
        "a is not served: threads is 0, it must be at least 1.",
        "b is not served: max_batch_size is 9 and --max-seq-len 8.",
    ]
