"""LightOnOCR as users call it: `vlm run`, `vlm ocr`, `vlm inspect` and the server's chat."""

from __future__ import annotations

import json

import openai
import pytest

import vlm
from tests.kits.cli_kit import call, one_sentence
from tests.kits.publications import lighton_kit
from tests.kits.servers import server_kit

pytestmark = pytest.mark.usefixtures("cache_of_module")

GREEDY = {"max_new_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model, and two pages beside it: as images and as a document."""
    folder = tmp_path_factory.mktemp("lighton") / "hf"
    lighton_kit.save(folder)
    pages = lighton_kit.pictures()[1:]
    for i, page in enumerate(pages):
        page.save(folder.parent / f"{i}.png")
    pages[0].save(folder.parent / "book.pdf", save_all=True, append_images=pages[1:])
    return folder


@pytest.fixture(scope="module")
def pipe(folder):
    return vlm.load(folder, device="cpu", cache_dir=folder.parent / "cache")


def test_an_image_is_read_without_a_prompt(folder, pipe):
    page = folder.parent / "0.png"
    out = call("run", "--image", page, "--model", folder, "--device", "cpu", "--max-new-tokens", 8, "--temperature", 0,
               "--json")  # fmt: skip
    assert out.exit_code == 0, out.output
    [told] = map(json.loads, out.stdout.splitlines())
    assert told["token_ids"] == pipe.generate(images=[page], **GREEDY).token_ids


def test_documents_are_read_the_same_again(folder, tmp_path):
    """Though the model's own settings draw its tokens."""
    texts = []
    for name in ("first", "second"):
        out = call("ocr", folder.parent / "book.pdf", "--out", tmp_path / name, "--model", folder, "--device", "cpu",
                   "--max-new-tokens", 12, "--format", "jsonl", "--workers", 0)  # fmt: skip
        assert out.exit_code == 0, out.output
        [file] = (tmp_path / name).glob("*.jsonl")
        texts.append([json.loads(line)["text"] for line in file.read_text().splitlines()])
    assert texts[0] == texts[1] and any(texts[0])


def test_what_it_is(folder):
    told = json.loads(call("inspect", folder, "--json").stdout)
    assert told["family"] == "lighton-ocr"


def test_a_chat_about_an_image(folder):
    pipe = vlm.load(folder, device="cpu")  # the server closes it
    expected = pipe.generate(images=[folder.parent / "1.png"], prompt="read", **GREEDY)
    with server_kit.serving({"light": pipe}) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
        ask = server_kit.asked("read", folder.parent / "1.png")
        answer = client.chat.completions.create(model="light", messages=ask, max_tokens=8, temperature=0)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.completion_tokens == len(expected.token_ids)


def test_more_pages_than_there_is_room_for(folder):
    images = [word for _ in range(3) for word in ("--image", folder.parent / "0.png")]
    out = call("run", *images, "--model", folder, "--device", "cpu", "--max-seq-len", 200)
    assert "231 of them rows of images" in one_sentence(out)
