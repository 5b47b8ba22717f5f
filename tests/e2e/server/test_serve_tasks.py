"""Requests of OpenAI's and KServe's APIs that name a task, of the model's own or one that it has tuned prompts for."""

from __future__ import annotations

import asyncio
import base64
import io
import json

import httpx
import numpy as np
import openai
import pytest

pytest.importorskip("tritonclient.grpc", reason="the extra grpc is not installed")

import torch
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from PIL import Image
from tritonclient.utils import InferenceServerException

import vlm
from tests.kits.models import prompted_kit, tiny
from tests.kits.models.prompted_kit import saved
from tests.kits.publications import florence_kit
from tests.kits.publications.donut_kit import FORMS, write_processor
from tests.kits.servers.server_kit import serving
from vlm.api.async_pipeline import AsyncPipeline

PROMPT = "w1 w2 w3"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A file of two tasks of four rows."""
    file = tmp_path_factory.mktemp("tables") / "two.npy"
    np.save(file, np.random.default_rng(2).normal(size=(2, 4, 32)).astype(np.float32))
    return file


def test_completions_and_conversations_name_tasks(table, tmp_path):
    saved("llama", tmp_path / "llama")
    pipe = vlm.load(tmp_path / "llama", device="cpu", prompt_table=table, cache_dir=tmp_path / "cache")
    tasks, turn = (-1, 0, "1"), [{"role": "user", "content": "w1"}]
    raw = [pipe.generate(raw_prompt=PROMPT, task=task, max_new_tokens=6).text for task in tasks]
    said = [pipe.generate(messages=turn, task=task, max_new_tokens=6).text for task in tasks]
    assert len(set(raw)) == 3 and len(set(said)) > 1
    with serving({"base": pipe}) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="-")
        for task, text, answer in zip(tasks, raw, said, strict=True):
            how = {"model": "base", "max_tokens": 6, "extra_body": {"task": task}}
            for prompt in (PROMPT, prompted_kit.ids(PROMPT), [PROMPT, PROMPT]):
                found = client.completions.create(prompt=prompt, **how)
                assert {choice.text for choice in found.choices} == {text}
            found = client.chat.completions.create(messages=turn, **how)
            assert found.choices[0].message.content == answer
        for task, says in (("mnli", "there is no task 'mnli'"), (2, "there is no task 2"), ([0], "task")):
            with pytest.raises(openai.BadRequestError, match=says):
                client.completions.create(model="base", prompt=PROMPT, extra_body={"task": task})


def test_kserves_requests_name_tuned_tasks_by_name_or_number(table, tmp_path):
    saved("llama", tmp_path / "llama")
    pipe = vlm.load(tmp_path / "llama", device="cpu", prompt_table=table, cache_dir=tmp_path / "cache")
    want = {task: pipe.generate(prompt=PROMPT, task=task, max_new_tokens=6).text for task in (-1, 0, "1", 1)}
    assert len(set(want.values())) == 3
    text = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [PROMPT]}
    length = {"max_output_len": 6}
    with serving({"base": pipe}, grpc_port=0) as served:
        post = lambda verb, body: httpx.post(f"{served.url}/v2/models/base/{verb}", json=body).json()  # noqa: E731
        by_grpc = triton_grpc.InferenceServerClient(served.grpc_address)
        prompt = made_of(triton_grpc, tensor("text_input", [[PROMPT]]))
        for task, answer in want.items():
            for told in ({"task": task}, {"parameters": {"task": task}}):
                assert post("generate", {"text_input": PROMPT, **length, **told})["text_output"] == answer
            found = by_grpc.infer("base", [prompt], parameters={"task": task, **length})
            assert found.as_numpy("text_output")[0, 0].decode() == answer
        batch = post("generate", {"text_input": [PROMPT] * 3, "task": [1, -1, 0], **length})["text_output"]
        assert batch == [want[task] for task in (1, -1, 0)]
        numbers = {"name": "task", "datatype": "INT32", "shape": [1, 1], "data": [1]}
        outputs = post("infer", {"inputs": [text, numbers], "parameters": length})["outputs"]
        assert {each["name"]: each["data"] for each in outputs}["text_output"] == [want[1]]
        for told, says in (
            ({"task": 2}, "there is no task 2"), ({"task": 2**70}, "task"), ({"task": True}, "not BYTES"),
            ({"task": [1, "1"]}, "task"), ({"task": 1, "prompt_learning_task_name_ids": 1}, "were sent together"),
        ):  # fmt: skip
            assert says in post("generate", {"text_input": PROMPT, **told})["error"]
        rows = {"name": "request_prompt_embedding", "datatype": "FP32", "shape": [1, 1, 32], "data": [0.5] * 32}
        ids = {"name": "input_ids", "datatype": "UINT32", "shape": [1, 2], "data": [5, 6]}
        told = post("infer", {"inputs": [ids, rows], "parameters": {"task": 0}})["error"]
        assert told.startswith("request_prompt_embedding and a task are two prompts of one input; give one")
        for value in (True, 1.5, 2**70, [1]):
            told = post("infer", {"inputs": [text], "parameters": {"task": value}})["error"]
            assert "must be a text or a number" in told


def test_embeddings_are_of_their_tasks(table, tmp_path, monkeypatch):
    monkeypatch.setitem(prompted_kit.MODELS, "t5", lambda: tiny.t5(seed=0, eos_token_id=2, tied=False))
    saved("t5", tmp_path / "t5")
    pipe = vlm.load(tmp_path / "t5", device="cpu", prompt_table=table, cache_dir=tmp_path / "cache")
    bare = vlm.load(tmp_path / "t5", device="cpu", cache_dir=tmp_path / "cache")
    # a pipeline that is served is the server's alone
    means = {task: pipe.encode(PROMPT, task=task).last_hidden_state.mean(0) for task in (-1, 0, 1)}
    with serving({"base": pipe, "bare": bare}) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="-")
        for task, mean in means.items():
            found = client.embeddings.create(model="base", input=PROMPT, extra_body={"task": task}).data[0].embedding
            torch.testing.assert_close(torch.tensor(found), mean / mean.norm(), atol=1e-5, rtol=1e-4)
        with pytest.raises(openai.BadRequestError, match="no tuned prompts are loaded"):
            client.embeddings.create(model="bare", input=PROMPT, extra_body={"task": 0})


def test_a_prompt_that_is_encoded_beside_its_task(tmp_path):
    """It becomes token ids ahead of the engine, which have the task in them."""
    florence_kit.write(florence_kit.florence2(), tmp_path / "florence", remote=False)
    pipe = vlm.load(tmp_path / "florence", device="cpu", cache_dir=tmp_path / "cache")
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (40, 60, 3), np.uint8)).save(file, "PNG")
    told = {"prompt": "w1", "task": "CAPTION_TO_PHRASE_GROUNDING"}
    [want] = pipe.encode([{"images": [file.getvalue()], **told}])

    async def encoded():
        model = AsyncPipeline(pipe)
        model.start()
        try:
            return await model.encode([told], [[file.getvalue()]])
        finally:
            await model.close()

    [found] = asyncio.run(encoded())
    torch.testing.assert_close(found.last_hidden_state, want.last_hidden_state)
    assert list(found.token_ids) == list(want.token_ids)


def test_a_models_own_tasks_and_questions(tmp_path):
    processor = write_processor(tmp_path / "donut", FORMS["several"])
    tiny.nougat(seed=4, vocab=len(processor.tokenizer)).save_pretrained(tmp_path / "donut")
    pipe = vlm.load(tmp_path / "donut", device="cpu", cache_dir=tmp_path / "cache")
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (70, 40, 3), np.uint8)).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    turn = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    named = ({"task": "docvqa", "question": "what is the date"}, {"task": "cord-v2"})
    alone = [pipe.generate(images=[file.getvalue()], max_new_tokens=6, **told).text for told in named]
    with serving({"donut": pipe}, grpc_port=0) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="-")
        ask = lambda told: client.chat.completions.create(model="donut", messages=turn, max_tokens=6, extra_body=told)  # noqa: E731
        for told, text in zip(named, alone, strict=True):
            assert ask(told).choices[0].message.content == text
        for told, says in (({"task": "forms"}, "task is 'forms'"), ({"task": "docvqa"}, "answers a question")):
            with pytest.raises(openai.BadRequestError, match=says):
                ask(told)
        check_tensors_and_parameters(served, url, dict(zip(("docvqa", "cord-v2"), alone, strict=True)))


def check_tensors_and_parameters(served, url: str, alone: dict[str, str]) -> None:
    """KServe's requests name tasks and questions as tensors or parameters, over HTTP and by gRPC."""
    image = tensor("image", [[url]])
    docvqa = {"task": "docvqa", "question": "what is the date"}
    inputs = {spec["name"] for spec in httpx.get(f"{served.url}/v2/models/donut").json()["inputs"]}
    assert {"task", "question"} <= inputs and "prompt_learning_task_name_ids" not in inputs
    as_tensors = lambda told: [tensor(name, [[text]]) for name, text in told.items()]  # noqa: E731
    by_http = triton_http.InferenceServerClient(served.url.removeprefix("http://"))
    by_grpc = triton_grpc.InferenceServerClient(served.grpc_address)
    for client, kind in ((by_http, triton_http), (by_grpc, triton_grpc)):
        for told in (docvqa, {"task": "cord-v2"}):
            for more, parameters in ((as_tensors(told), {}), ([], told)):
                made = [made_of(kind, each) for each in (image, *more)]
                found = client.infer("donut", made, parameters={"max_output_len": 6, **parameters})
                assert found.as_numpy("text_output").item().decode() == alone[told["task"]]
        with pytest.raises(InferenceServerException, match="task 'cord-v2' takes no question"):
            told = {"task": "cord-v2", "question": "who?"}
            client.infer("donut", [made_of(kind, image)], parameters=told)
        with pytest.raises(InferenceServerException, match="question is given as a tensor and as a parameter"):
            made = [made_of(kind, each) for each in (image, *as_tensors(docvqa))]
            client.infer("donut", made, parameters={"question": "who?"})
        client.close()
    body = {"image": url, "max_output_len": 6, **docvqa}
    found = httpx.post(f"{served.url}/v2/models/donut/generate", json=body).json()
    assert found["text_output"] == alone["docvqa"]
    found = httpx.post(f"{served.url}/v2/models/donut/generate", json=body | {"question": 5}).json()
    assert "question" in found["error"]


def tensor(name: str, values: list) -> tuple[str, np.ndarray]:
    return name, np.array([[text.encode() for text in row] for row in values], object)


def made_of(kind, named: tuple[str, np.ndarray]):
    """Returns an input of Triton's client of HTTP or of gRPC."""
    name, array = named
    found = kind.InferInput(name, list(array.shape), "BYTES")
    found.set_data_from_numpy(array)
    return found


def test_tasks_that_a_conversation_marks(tmp_path):
    """In its last message, or named beside it; answers are in pixels of the image that was sent."""
    florence_kit.write(florence_kit.florence2(), tmp_path / "florence", remote=True)
    pipe = vlm.load(tmp_path / "florence", device="cpu", cache_dir=tmp_path / "cache")
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(3).integers(0, 256, (90, 140, 3), np.uint8)).save(file, "JPEG")
    url = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    region = "<loc_52><loc_332><loc_932><loc_774>"
    tasks = {"REGION_PROPOSAL": None, "REGION_TO_SEGMENTATION": region}
    alone = {
        task: pipe.generate(images=[file.getvalue()], task=task, question=question, max_new_tokens=24).text
        for task, question in tasks.items()
    }
    with serving({"florence": pipe}) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="-")

        def ask(text, **told):
            content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}]
            turn = [{"role": "user", "content": content}]
            answer = client.chat.completions.create(model="florence", messages=turn, max_tokens=24, extra_body=told)
            return answer.choices[0].message.content

        for task, question in tasks.items():
            assert {"bboxes", "polygons"} & json.loads(alone[task]).keys()
            assert ask(f"<{task}>{question or ''}") == ask(question or "", task=task) == alone[task]
        for text, told, says in (("", {"task": "forms"}, "task is 'FORMS'"), ("<OD> cars", {}, "takes no question"),
                                 ("<REGION_TO_OCR>", {}, "answers a question")):  # fmt: skip
            with pytest.raises(openai.BadRequestError, match=says):
                ask(text, **told)
