"""`vlm serve --model-repository`: Triton's model repositories, on disk and in S3, under Triton's own client."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import urllib.error
import urllib.request
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx
import numpy as np
import openai
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

pytest.importorskip("tritonclient.grpc", reason="the extra triton is not installed")

import tritonclient.grpc as triton_grpc

from tests.kits.cli_kit import call
from tests.kits.servers.s3_kit import store
from tests.kits.servers.server_kit import alone, load, serving, until
from vlm.build.locate import packaged_models
from vlm.errors import OutOfMemoryError
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository.control import Repositories
from vlm_app.server.repository.loading import Loader
from vlm_app.server.repository.repository import Entry, scan

TEXT = "translate English to German: The old ship is small."


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    out = tmp_path_factory.mktemp("repository") / "models"
    assert call("export-triton", "mini-t5", "-o", out, "--device", "cpu", "--max-batch-size", "3").exit_code == 0
    return out


def copied(exported: Path, folder: Path) -> Path:
    """A repository of an ensemble of ours, a Hugging Face folder in two versions, and what cannot be served."""
    shutil.copytree(exported, folder)
    for version in ("1", "2", "02"):
        shutil.copytree(packaged_models()["mini-t5"], folder / "hf" / version)
    for name in ("empty/1", "unversioned/latest"):
        (folder / name).mkdir(parents=True)
        (folder / name / "notes.txt").write_text("nothing")
    (folder / "odd" / "1").mkdir(parents=True)
    (folder / "odd" / "config.pbtxt").write_text("max_batch_size: many")
    return folder


@contextlib.contextmanager
def served(*urls: str, **config):
    repositories = Repositories([str(url) for url in urls], Loader(LoadOptions(runtime={"device": "cpu"})))
    repositories.scan()
    good = [name for name, found in repositories.entries.items() if isinstance(found, Entry)]
    with (
        serving({name: repositories.load(name) for name in good}, repositories, **config) as found,
        triton.InferenceServerClient(found.address, network_timeout=1800) as client,
    ):
        yield found, client


def translated(client, name: str = "mini-t5", version: str = "") -> str:
    text = triton.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[TEXT.encode()]], object))
    return client.infer(name, [text], version).as_numpy("text_output")[0, 0].decode()


def states(client) -> dict[str, str]:
    return {row["name"]: row["state"] for row in client.get_model_repository_index()}


def test_a_repository_in_s3_is_served_and_fetched_once(exported, bucket, tmp_path, monkeypatch):
    import s3fs

    store().put(str(copied(exported, tmp_path / "models")), f"{bucket}/models", recursive=True)
    fetched, get_file = [], s3fs.S3FileSystem.get_file
    counted = lambda self, source, *rest, **more: (fetched.append(source), get_file(self, source, *rest, **more))[1]  # noqa: E731
    monkeypatch.setattr(s3fs.S3FileSystem, "get_file", counted)
    with served(f"{bucket}/models") as (found, client):
        assert translated(client) == alone("mini-t5").generate(text=TEXT).text
        assert translated(client, "hf", "2") == translated(client)
        assert client.get_model_metadata("hf")["versions"] == ["2"]
        assert client.get_model_config("mini-t5")["max_batch_size"] == 3
        assert found.service("mini-t5").pipeline.llm.limits.max_batch_size == 3
        rows = {row["name"]: row for row in client.get_model_repository_index()}
    assert {name for name, row in rows.items() if row["state"] == "READY"} == {"mini-t5", "hf"}
    assert rows.keys() == {"mini-t5", "hf", "empty", "unversioned", "odd"}
    assert all(rows[name]["reason"].endswith(".") for name in ("empty", "unversioned", "odd"))
    assert not any("/hf/1/" in name or "preprocessing" in name for name in fetched) and len(fetched) > 4
    fetched.clear()
    with served(f"{bucket}/models") as (_, client):
        assert translated(client) and fetched == []
        store().pipe_file(f"{bucket}/models/hf/2/extra.txt", b"changed")
        assert scan(f"{bucket}/models")["hf"].fetched().joinpath("extra.txt").read_text() == "changed"


def test_models_come_and_go_while_others_are_asked(exported, tmp_path):
    shutil.copytree(exported, models := tmp_path / "models")
    shutil.copytree(packaged_models()["mini-t5"], tmp_path / "later")
    with served(models, model_control=True) as (found, client):
        before, held = translated(client), weakref.ref(found.service("mini-t5").pipeline)
        client.unload_model("mini-t5")
        assert held() is None  # nothing holds its memory
        assert states(client) == {"mini-t5": "UNAVAILABLE"} and not client.is_model_ready("mini-t5")
        with pytest.raises(InferenceServerException, match="not served here"):
            translated(client)
        client.load_model("mini-t5")
        assert translated(client) == before
        (models / "hf").mkdir()
        (tmp_path / "later").rename(models / "hf" / "1")
        client.load_model("hf")
        assert translated(client, "hf", "1") == before and states(client) == {"mini-t5": "READY", "hf": "READY"}
        shutil.copytree(models / "hf" / "1", models / "hf" / "10")
        client.load_model("hf")
        assert client.get_model_metadata("hf")["versions"] == ["10"] and translated(client, "hf", "10") == before
        with pytest.raises(InferenceServerException, match="there is 10"):
            translated(client, "hf", "1")
        (models / "hf" / "config.pbtxt").write_text("version_policy { specific { versions: 7 } }")
        with pytest.raises(InferenceServerException, match="holds no version"):
            client.load_model("hf")
        assert translated(client, "hf", "10") == before
        for arguments, words in (({}, "in no repository"), ({"config": "{}"}, "no parameters")):
            with pytest.raises(InferenceServerException, match=words):
                client.load_model("nothing", **arguments)


def test_models_come_and_go_over_grpc_and_stream_as_their_configuration_says(exported, tmp_path):
    shutil.copytree(exported, models := tmp_path / "models")
    text = triton_grpc.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[TEXT.encode()]], object))

    def streamed(client) -> int:
        """How many responses a request gets."""
        answers: queue.SimpleQueue = queue.SimpleQueue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("mini-t5", [text])
        client.stop_stream()
        found = [answers.get() for _ in range(answers.qsize())]
        assert [error for _, error in found if error] == []
        return len(found)

    with (
        served(models, model_control=True, grpc_port=0) as (found, _),
        triton_grpc.InferenceServerClient(found.grpc_address) as client,
    ):
        assert not client.get_model_config("mini-t5").config.model_transaction_policy.decoupled
        assert streamed(client) == 1
        client.unload_model("mini-t5", unload_dependents=True)
        [row] = client.get_model_repository_index().models
        assert (row.name, row.state, row.reason) == ("mini-t5", "UNAVAILABLE", "unloaded")
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            client.infer("mini-t5", [text])
        file = models / "mini-t5-engine" / "config.pbtxt"
        file.write_text(file.read_text().replace("transaction_policy {", "transaction_policy { decoupled: true"))
        client.load_model("mini-t5")
        assert client.get_model_config("mini-t5").config.model_transaction_policy.decoupled
        assert streamed(client) > 1
        for name, config, code in (("nothing", None, "NOT_FOUND"), ("mini-t5", "{}", "INVALID_ARGUMENT")):
            with pytest.raises(InferenceServerException, match=code):
                client.load_model(name, config=config)


def test_what_is_asked_ends_before_its_model_goes(exported):
    with served(exported, model_control=True) as (found, client), ThreadPoolExecutor() as pool:
        service = found.service("mini-t5")
        with openai.OpenAI(base_url=f"{found.url}/v1", api_key="none") as asking:
            options = {"extra_body": {"ignore_eos": True}, "max_tokens": 90, "stream": True}
            stream = asking.completions.create(model="mini-t5", prompt=TEXT, **options)
            first = next(stream)
            gone = pool.submit(client.unload_model, "mini-t5")
            until(lambda: "mini-t5" not in found.app.state.services.by_name)
            assert first and [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1] == "length"
        gone.result()
        assert service.room.held == 0 and service.pipeline.llm.scheduler.blocks.balanced


def test_who_asks_while_a_model_is_loaded_anew_may_ask_again(exported, tmp_path, monkeypatch):
    shutil.copytree(exported, models := tmp_path / "models")
    with (
        served(models, model_control=True, grpc_port=0) as (found, client),
        triton_grpc.InferenceServerClient(found.grpc_address) as asking,
        ThreadPoolExecutor() as pool,
    ):
        text = triton_grpc.InferInput("text_input", [1, 1], "BYTES")
        text.set_data_from_numpy(np.array([[TEXT.encode()]], object))
        monkeypatch.setattr("vlm_app.server.repository.loading.free_bytes", lambda device: 0)  # not beside each other
        before, begun, go_on, load_entry = translated(client), Event(), Event(), Loader.entry
        held = lambda self, entry: (begun.set(), go_on.wait(60), load_entry(self, entry))[2]  # noqa: E731
        monkeypatch.setattr(Loader, "entry", held)
        (models / "mini-t5-engine" / "1" / "engine" / "notes.txt").write_text("changed")
        loading = pool.submit(httpx.post, f"{found.url}/v2/repository/models/mini-t5/load", timeout=600)
        assert begun.wait(60)
        assert states(client) == {"mini-t5": "LOADING"} and not client.is_model_ready("mini-t5")
        answer = httpx.post(f"{found.url}/v1/completions", json={"model": "mini-t5", "prompt": TEXT})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"]["message"] == "'mini-t5' is being loaded; ask again later."
        with pytest.raises(InferenceServerException, match=r"UNAVAILABLE.*is being loaded"):
            asking.infer("mini-t5", [text])
        go_on.set()
        assert loading.result().status_code == 200
        assert translated(client) == before and states(client) == {"mini-t5": "READY"}


def test_a_model_goes_on_until_its_successor_takes_its_place(exported, tmp_path, monkeypatch):
    shutil.copytree(exported, models := tmp_path / "models")
    changed = models / "mini-t5-engine" / "1" / "engine" / "notes.txt"
    with served(models, model_control=True) as (found, client), ThreadPoolExecutor() as pool:
        before, held = translated(client), weakref.ref(found.service("mini-t5").pipeline)
        begun, go_on, load_entry = Event(), Event(), Loader.entry
        waiting = lambda self, entry: (begun.set(), go_on.wait(60), load_entry(self, entry))[2]  # noqa: E731
        monkeypatch.setattr(Loader, "entry", waiting)
        changed.write_text("changed")
        loading = pool.submit(httpx.post, f"{found.url}/v2/repository/models/mini-t5/load", timeout=600)
        assert begun.wait(60)
        assert translated(client) == before and states(client) == {"mini-t5": "READY"}
        go_on.set()
        assert loading.result().status_code == 200
        assert held() is None and translated(client) == before


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("file", ["decoder/rank0.safetensors", "processor/tokenizer.json", "manifest.json"])
def test_a_model_goes_on_where_its_successors_files_fail(exported, tmp_path, monkeypatch, has_room, file):
    if not has_room:
        monkeypatch.setattr("vlm_app.server.repository.loading.free_bytes", lambda device: 0)
    shutil.copytree(exported, models := tmp_path / "models")
    with served(models, model_control=True) as (_, client):
        before, path = translated(client), models / "mini-t5-engine" / "1" / "engine" / file
        good = path.read_bytes()
        path.unlink()  # the model that runs may have it mapped
        path.write_bytes(bytes(byte ^ 1 for byte in good))
        with pytest.raises(InferenceServerException, match=r"edited|cannot be read|damaged"):
            client.load_model("mini-t5")
        assert translated(client) == before and states(client) == {"mini-t5": "READY"}
        path.write_bytes(good)
        client.load_model("mini-t5")
        assert translated(client) == before


def test_a_model_that_made_room_in_vain_is_told_of(exported, tmp_path, monkeypatch):
    shutil.copytree(exported, models := tmp_path / "models")
    with served(models, model_control=True) as (_, client):
        before = translated(client)
        (models / "mini-t5-engine" / "1" / "engine" / "notes.txt").write_text("changed")
        with monkeypatch.context() as patched:
            patched.setattr("vlm_app.server.repository.loading.free_bytes", lambda device: 0)
            patched.setattr(Loader, "model", raises(OutOfMemoryError("the engine needs 2.0 GiB.")))
            with pytest.raises(
                InferenceServerException, match=r"2\.0 GiB; mini-t5 as it was before had to make room, and"
            ):
                client.load_model("mini-t5")
        assert states(client) == {"mini-t5": "UNAVAILABLE"}
        client.load_model("mini-t5")
        assert translated(client) == before


def raises(error: Exception):
    def call(*arguments, **options):
        raise error

    return call


def test_control_is_for_repositories_and_must_be_allowed(exported):
    with served(exported) as (_, client):
        with pytest.raises(InferenceServerException, match="--model-control") as caught:
            client.unload_model("mini-t5")
        assert caught.value.status() == "403"
    with serving(load("mini-t5"), model_control=True) as found, triton.InferenceServerClient(found.address) as client:
        with pytest.raises(InferenceServerException, match="not of a model repository"):
            client.unload_model("mini-t5")
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(f"{found.url}/v2/repository/index", b"{")
        with urllib.request.urlopen(f"{found.url}/v2/repository/index", b'{"ready": true}') as answer:
            assert [row["name"] for row in json.load(answer)] == ["mini-t5"]


def test_the_command_tells_of_broken_models_and_serves_the_others(exported, tmp_path, monkeypatch):
    models, seen = copied(exported, tmp_path / "models"), {}

    def stands_in(pipelines, config, announce, repositories):
        seen.update(pipelines=pipelines, config=config)
        announce("http://here")
        return "the engine of hf has broken: device lost"

    monkeypatch.setattr("vlm_app.server.run.run", stands_in)
    result = call("serve", "mini=mini-t5", "--model-repository", models, "--device", "cpu", "--warm-up")
    assert result.exit_code == 70 and "hf has broken: device lost; start the server again." in result.stderr
    assert seen["pipelines"].keys() == {"mini", "mini-t5", "hf"} and seen["config"].exit_when_broken
    told = [line for line in result.stderr.splitlines() if " is not served: " in line]
    assert [line.partition(f" is not served: {models}")[0] for line in told] == [
        "vlm: empty",
        "vlm: odd",
        "vlm: unversioned",
    ]
    assert "serving mini, hf, mini-t5 at http://here" in result.stderr
    for arguments, words in (
        ([], "nothing to serve"),
        (["mini-t5", "--model-repository", models], "both a MODEL and in a model repository"),
        (["--model-repository", models, "--model-repository", models], "two model repositories hold"),
        (["--model-repository", tmp_path / "none"], "none does not exist; give a folder of models"),
        (["--model-repository", "nosuch://x"], "nosuch"),
        (["--model-repository", models / "empty"], "could be loaded"),
    ):
        refused = call("serve", *arguments, "--device", "cpu")
        assert refused.exit_code == 2 and words in refused.stderr and "internal" not in refused.stderr
