"""Qwen2.5-VL as users call it: `vlm run`, `vlm inspect`, `vlm verify` and the server's chat about several images."""

from __future__ import annotations

import json
import shutil

import openai
import pytest

import vlm
from tests.kits.cli_kit import call, one_sentence
from tests.kits.publications import qwen_kit
from tests.kits.servers import server_kit
from visual_engines.families.qwen_vl import PAGE_PROMPTS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache_of_module")]

GREEDY = {"max_new_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model, and two pictures beside it."""
    folder = tmp_path_factory.mktemp("qwen") / "hf"
    qwen_kit.save(folder)
    for i, picture in enumerate(qwen_kit.pictures()[1:3]):
        picture.save(folder.parent / f"{i}.png")
    return folder


def test_images_are_asked_about(folder):
    pictures = [folder.parent / f"{i}.png" for i in range(2)]
    out = call("run", "--image", pictures[0], "--image", pictures[1], "--prompt", "read", "--model", folder, "--device",
               "cpu", "--max-new-tokens", 8, "--temperature", 0, "--json")  # fmt: skip
    assert out.exit_code == 0, out.output
    told = [json.loads(line)["token_ids"] for line in out.stdout.splitlines()]
    pipe = vlm.load(folder, device="cpu")
    both = pipe.generate(images=pictures, prompt="read", **GREEDY).token_ids
    each = [pipe.generate(images=[picture], prompt="read", **GREEDY).token_ids for picture in pictures]
    assert told == [both] and both not in each


def test_pages_are_read(folder, tmp_path):
    out = call("ocr", folder.parent / "0.png", "--out", tmp_path, "--model", folder, "--device", "cpu",
               "--max-new-tokens", 12, "--format", "jsonl", "--workers", 0)  # fmt: skip
    assert out.exit_code == 0, out.output
    [file] = tmp_path.glob("*.jsonl")
    [page] = map(json.loads, file.read_text().splitlines())
    assert page["text"]


def test_pages_are_asked_about_as_published(folder, tmp_path):
    """By the name of the folder, or as told; and a job goes on with the prompt that it was begun with."""
    named = folder.parent / "Nanonets-OCR2-3B"
    shutil.copytree(folder, named)
    page, texts = folder.parent / "0.png", {}
    prompts = {"published": [], "told": ["--prompt", "user"], "the same": ["--prompt", PAGE_PROMPTS["Nanonets-OCR"]]}
    for name, prompt in prompts.items():
        out = call("ocr", page, "--out", tmp_path / name, "--model", named, "--device", "cpu", "--max-new-tokens", 12,
                   "--format", "jsonl", "--workers", 0, "--retries", 0, *prompt)  # fmt: skip
        [file] = (tmp_path / name).glob("*.jsonl")
        texts[name] = json.loads(file.read_text())["text"]
    assert texts["published"] == texts["the same"] != texts["told"]
    out = call("ocr", page, "--out", tmp_path / "told", "--model", named, "--device", "cpu", "--max-new-tokens", 12)
    assert "prompt" in one_sentence(out)


def test_a_prompt_for_a_model_that_takes_none(folder, tmp_path):
    out = call("ocr", folder.parent / "0.png", "--out", tmp_path, "--model", "mini-nougat", "--prompt", "read")
    assert "nougat reads pages without being asked; leave it out" in one_sentence(out)


def test_what_it_is(folder):
    told = json.loads(call("inspect", folder, "--json").stdout)
    assert told["family"] == "qwen-vl"


def test_it_agrees_with_its_class(folder):
    out = call("verify", folder, "--against", folder, "--device", "cpu", "--new-tokens", 4)
    assert out.exit_code == 0, out.output
    assert "2 images, 17 tokens" in out.stdout and "100.0% of the tokens agree" in out.stdout


def test_a_chat_about_two_images(folder):
    pipe = vlm.load(folder, device="cpu")  # the server closes it
    pictures = [folder.parent / f"{i}.png" for i in range(2)]
    expected = pipe.generate(images=pictures, prompt="<image><image>read", **GREEDY)
    with server_kit.serving({"qwen": pipe}) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
        ask = server_kit.asked("read", *pictures)
        answer = client.chat.completions.create(model="qwen", messages=ask, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.completion_tokens == len(expected.token_ids)


def test_more_images_than_there_is_room_for(folder):
    images = [word for _ in range(3) for word in ("--image", folder.parent / "0.png")]
    out = call("run", *images, "--prompt", "read", "--model", folder, "--device", "cpu", "--max-seq-len", 200)
    assert "231 of them rows of images" in one_sentence(out)
