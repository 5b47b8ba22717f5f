"""Adapters of a served model are asked like models, by OpenAI's own client."""

from __future__ import annotations

import shutil

import httpx
import openai
import pytest
import torch

import vlm
from tests.kits.cli_kit import call
from tests.kits.models import prompted_kit, tiny
from tests.kits.models.lora_kit import random_adapter, random_ia3
from tests.kits.models.prompted_kit import saved
from tests.kits.servers.server_kit import serving
from vlm_app.cli.errors import USER_ERROR
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.repository.control import Repositories
from vlm_app.server.repository.loading import Loader

PROMPT = "w1 w2 w3"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A LLaMA and two adapters of it, a LoRA and an IA3, by name."""
    root = tmp_path_factory.mktemp("served")
    saved("llama", root / "llama")
    layers = [f"model.layers.{i}.self_attn.{name}_proj" for i in range(2) for name in "qo"]
    adapters = random_adapter(root / "a", *layers, seed=0), random_ia3(root / "b", *layers, seed=1)
    return root / "llama", dict(zip("ab", adapters, strict=True))


def test_an_adapter_is_asked_by_its_name(folders, tmp_path):
    folder, adapters = folders
    pipe = vlm.load(folder, device="cpu", lora=adapters, cache_dir=tmp_path)
    names = {"base": None, "a": "a", "b": "b"}
    want = {name: pipe.generate(raw_prompt=PROMPT, max_new_tokens=6, lora=lora).text for name, lora in names.items()}
    assert len(set(want.values())) == 3
    with serving({"base": pipe}) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="-")
        for name, text in want.items():
            assert client.completions.create(model=name, prompt=PROMPT, max_tokens=6).choices[0].text == text
        question = [{"role": "user", "content": "w1"}]
        answers = [client.chat.completions.create(model=n, messages=question, max_tokens=6) for n in want]
        assert len({answer.choices[0].message.content for answer in answers}) > 1
        assert [answer.model for answer in answers] == list(want)
        listing = {model.id: getattr(model, "parent", None) for model in client.models.list()}
        assert listing == {"base": None, "a": "base", "b": "base"}
        assert client.models.retrieve("b").id == "b"
        with pytest.raises(openai.NotFoundError, match="model 'c' is not served here; there is base, a, b"):
            client.completions.create(model="c", prompt=PROMPT)
        for route in ("models/b", "models/b/config"):
            error = httpx.get(f"{served.url}/v2/{route}")
            assert error.status_code == 404
            assert "'b' is an adapter, not a model; ask base, with lora_task_uids 1" in error.json()["error"]


def test_embeddings_are_of_their_adapters(tmp_path, monkeypatch):
    monkeypatch.setitem(prompted_kit.MODELS, "t5", lambda: tiny.t5(seed=0, eos_token_id=2, tied=False))
    saved("t5", tmp_path / "t5")
    adapter = random_adapter(tmp_path / "own", "encoder.block.0.layer.0.SelfAttention.q", seed=3)
    pipe = vlm.load(tmp_path / "t5", device="cpu", lora={"own": adapter}, cache_dir=tmp_path / "cache")
    want = [pipe.encode(PROMPT, lora=lora).last_hidden_state.mean(0) for lora in (-1, "own")]
    with serving({"base": pipe}) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="-")
        for name, mean in zip(("base", "own"), want, strict=True):
            found = torch.tensor(client.embeddings.create(model=name, input=PROMPT).data[0].embedding)
            torch.testing.assert_close(found, mean / mean.norm(), atol=1e-5, rtol=1e-4)
    assert not want[0].allclose(want[1])


def tensor(name: str, kind: str, rows: list) -> dict:
    return {"name": name, "datatype": kind, "shape": [len(rows), len(rows[0])], "data": rows}


def answered(url: str, *tensors: dict, **more: dict) -> dict:
    """What KServe's protocol answers: outputs by their names, or the error."""
    body = httpx.post(f"{url}/v2/models/base/infer", json={"inputs": tensors, **more}).json()
    return {each["name"]: each["data"] for each in body["outputs"]} if "outputs" in body else body


def test_rows_of_tensors_name_their_adapters_by_number(folders, tmp_path):
    folder, adapters = folders
    pipe = vlm.load(folder, device="cpu", lora=adapters, cache_dir=tmp_path)
    ids, numbers = [5, 9, 4], [-1, 0, 1]
    inputs = [{"decoder_prompt_token_ids": ids, "lora": number} for number in numbers]
    want = [ids + out.token_ids for out in pipe.generate(inputs, max_new_tokens=6)]
    texts = [pipe.generate({"prompt": PROMPT}, max_new_tokens=6, lora=number).text for number in numbers]
    assert len(set(map(tuple, want))) == len(set(texts)) == 3
    with serving({"base": pipe}) as served:
        prompts, lengths = tensor("input_ids", "UINT32", [ids] * 3), tensor("max_output_len", "UINT32", [[6]] * 3)
        for name, kind in (("lora_task_uids", "INT32"), ("task_id", "INT64"), ("ia3_tasks", "INT32")):
            tasks = tensor(name, kind, [[number] for number in numbers])
            found = answered(served.url, prompts, lengths, tasks)
            assert found["output_ids"] == [i for row in want for i in row]
        found = answered(served.url, tensor("text_input", "BYTES", [[PROMPT]] * 3), lengths, tasks)
        assert found["text_output"] == texts
        text_input = tensor("text_input", "BYTES", [[PROMPT]])
        for number, text in zip(numbers, texts, strict=True):
            for name in ("lora_task_uids", "task_id", "ia3_tasks"):
                for told in ({"parameters": {name: number}}, {name: number}):
                    body = {"text_input": PROMPT, "request_output_len": 6, **told}
                    assert httpx.post(f"{served.url}/v2/models/base/generate", json=body).json()["text_output"] == text
                found = answered(served.url, text_input, parameters={name: number, "request_output_len": 6})
                assert found["text_output"] == [text]
        twice = tensor("task_id", "INT32", [[0]] * 3)
        assert "ia3_tasks, task_id say the same" in answered(served.url, prompts, tasks, twice)["error"]
        both = answered(served.url, text_input, tensor("task_id", "INT32", [[0]]), parameters={"ia3_tasks": 0})
        assert "lora_task_uids is given as a tensor and as a parameter" in both["error"]
        wrong = tensor("task_id", "INT32", [[2]] * 3)
        error = answered(served.url, prompts, wrong)["error"]
        assert error.startswith("there is no adapter 2: a, b is what is loaded; GET /v1/models lists the adapters")
        assert "POST /v1/load_lora_adapter loads one where" in error and "--lora" not in error


def test_a_repository_names_its_models_adapters(folders, tmp_path, monkeypatch):
    pytest.importorskip("tritonclient.grpc", reason="the extra triton is not installed")
    monkeypatch.setenv("VLM_CACHE", str(tmp_path / "cache"))
    folder, adapters = folders
    shutil.copytree(folder, tmp_path / "models" / "base" / "1")
    for name, adapter in adapters.items():
        shutil.copytree(adapter, tmp_path / "models" / "base" / "adapters" / name)
    words = 'parameters { key: "lora" value: { string_value: "a=adapters/a, b=adapters/b" } }'
    (tmp_path / "models" / "base" / "config.pbtxt").write_text(words)
    repositories = Repositories([str(tmp_path / "models")], Loader(LoadOptions(runtime={"device": "cpu"})))
    repositories.scan()
    pipe = repositories.load("base")
    want = [pipe.generate(raw_prompt=PROMPT, max_new_tokens=6, lora=name).text for name in (None, "a", "b")]
    with serving({"base": pipe}, repositories) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="-")
        create = lambda model: client.completions.create(model=model, prompt=PROMPT, max_tokens=6)  # noqa: E731
        assert [create(model).choices[0].text for model in ("base", "a", "b")] == want
    assert len(set(want)) == 3


def test_an_encoders_rows_have_their_adapters(tmp_path, monkeypatch):
    monkeypatch.setitem(prompted_kit.MODELS, "t5", lambda: tiny.t5(seed=0, eos_token_id=2, tied=False))
    saved("t5", tmp_path / "t5")
    adapter = random_ia3(tmp_path / "own", "encoder.block.0.layer.0.SelfAttention.v", seed=3)
    cache = {"device": "cpu", "cache_dir": tmp_path / "cache"}
    pipe = vlm.load(tmp_path / "t5", encoder_only=True, lora={"own": adapter}, **cache)
    want = [pipe.encode({"input_ids": [5, 9, 1]}, lora=lora).last_hidden_state for lora in (-1, "own")]
    assert not want[0].allclose(want[1])
    with serving({"base": pipe}) as served:
        tasks = tensor("ia3_tasks", "INT32", [[-1], [0]])
        found = answered(served.url, tensor("input_ids", "UINT32", [[5, 9, 1]] * 2), tasks)
        states = torch.tensor(found["output_hidden_states"]).view(2, 3, -1)
        torch.testing.assert_close(states, torch.stack(want), atol=1e-5, rtol=1e-4)
        text = tensor("text_input", "BYTES", [[PROMPT]] * 2)
        base, own = torch.tensor(answered(served.url, text, tasks)["output_hidden_states"]).view(2, -1)
        assert not base.allclose(own)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("x=one", "y=two", "--lora", "a=b"), "--lora is for a server of one MODEL"),
        (("a=one", "--lora", "a=b"), "a is both a MODEL and an adapter"),
    ],
)
def test_whose_adapters_they_are_is_plain(arguments, sentence):
    result = call("serve", *arguments)
    assert result.exit_code == USER_ERROR and sentence in result.stderr


def test_adapters_come_and_go_where_clients_may_say_so(folders, tmp_path):
    folder, adapters = folders
    want = vlm.load(folder, device="cpu", lora=adapters, cache_dir=tmp_path).generate(
        raw_prompt=PROMPT, max_new_tokens=6, lora="b"
    )
    pipe = vlm.load(folder, device="cpu", max_loras=1, cache_dir=tmp_path)
    load = {name: {"lora_name": name, "lora_path": str(path)} for name, path in adapters.items()}
    with serving({"base": pipe}, model_control=True) as served:
        post = lambda what, body: httpx.post(f"{served.url}/v1/{what}_lora_adapter", json=body)  # noqa: E731
        assert post("load", load["a"]).text == "Success: LoRA adapter 'a' added successfully."
        for body, sentence in (
            (load["a"], "there is an adapter 'a' already"),
            (load["b"], "there is room for 1 adapter at once; unload one"),
            (load["b"] | {"lora_name": "base"}, "'base' is a model here"),
            (load["b"] | {"lora_path": "/nowhere"}, "is no folder of a PEFT adapter"),
            (load["b"] | {"lora_path": "x" * 256}, "cannot be read: File name too long"),
            (load["b"] | {"lora_path": "\0"}, "cannot be read: it can be no path (embedded null byte)"),
            (load["b"] | {"lora_path": "~nobody/x"}, "is no folder of a PEFT adapter"),
            *((load["b"] | {"lora_name": n}, "is no adapter's name") for n in ("\0", "\n", " ", "..", "b ")),
        ):
            answer = post("load", body)
            assert answer.status_code == 400 and sentence in answer.json()["error"]["message"]
        assert post("unload", {"lora_name": "base"}).status_code == 400
        assert post("unload", {"lora_name": "c"}).status_code == 404
        assert post("unload", {"lora_name": "a", "lora_int_id": 1}).status_code == 200
        assert post("load", load["b"]).status_code == 200
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="-")
        assert client.completions.create(model="b", prompt=PROMPT, max_tokens=6).choices[0].text == want.text
        assert [model.id for model in client.models.list()] == ["base", "b"]


def test_clients_change_nothing_unless_they_may(folders, tmp_path):
    folder, adapters = folders
    with serving({"base": vlm.load(folder, device="cpu", max_loras=1, cache_dir=tmp_path)}) as served:
        body = {"lora_name": "a", "lora_path": str(adapters["a"])}
        answer = httpx.post(f"{served.url}/v1/load_lora_adapter", json=body)
        assert answer.status_code == 403 and "--model-control" in answer.json()["error"]["message"]
