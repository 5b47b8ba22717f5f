"""Granite-Docling as users call it: `vlm run`, `vlm ocr`, `vlm inspect`, `vlm verify` and the server's chat."""

from __future__ import annotations

import json
import shutil

import openai
import pytest

import vlm
from tests.kits.cli_kit import call, one_sentence
from tests.kits.publications import idefics3_kit
from tests.kits.servers import server_kit

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cache_of_module")]

GREEDY = {"max_new_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model, and pictures beside it."""
    folder = tmp_path_factory.mktemp("idefics3") / "hf"
    idefics3_kit.save(folder)
    for i, picture in enumerate(idefics3_kit.pictures()):
        picture.save(folder.parent / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def scripted(folder, tmp_path_factory):
    """One that writes the same page whatever it reads, and two pages in a folder."""
    model = tmp_path_factory.mktemp("scripted") / "granite-docling-258M"
    idefics3_kit.save(model, script=idefics3_kit.SCRIPT)
    pages = model.parent / "pages"
    pages.mkdir()
    for i in range(2):
        shutil.copy(folder.parent / f"{i}.png", pages)
    return model


def test_images_are_asked_about(folder):
    pictures = [folder.parent / f"{i}.png" for i in (1, 3)]
    out = call("run", "--image", pictures[0], "--image", pictures[1], "--prompt", "read", "--model", folder, "--device",
               "cpu", "--max-new-tokens", 8, "--temperature", 0, "--json")  # fmt: skip
    assert out.exit_code == 0, out.output
    told = [json.loads(line)["token_ids"] for line in out.stdout.splitlines()]
    pipe = vlm.load(folder, device="cpu")
    both = pipe.generate(images=pictures, prompt="read", **GREEDY).token_ids
    each = [pipe.generate(images=[picture], prompt="read", **GREEDY).token_ids for picture in pictures]
    assert told == [both] and both not in each


def test_pages_become_markdown(scripted, tmp_path):
    out = call("ocr", scripted.parent / "pages", "--out", tmp_path, "--model", scripted, "--device", "cpu",
               "--max-new-tokens", 30, "--workers", 0)  # fmt: skip
    assert out.exit_code == 0, out.output
    files = sorted(tmp_path.glob("*.md"))
    assert [file.read_text().strip() for file in files] == [idefics3_kit.MARKDOWN] * 2
    out = call("ocr", scripted.parent / "pages", "--out", tmp_path, "--model", scripted, "--device", "cpu",
               "--max-new-tokens", 30, "--workers", 0, "--format", "mmd")  # fmt: skip
    tags = "".join(idefics3_kit.SCRIPT[1:-1]).split()  # a tokenizer of words puts blanks between them
    found = [file.read_text().split() for file in sorted(tmp_path.glob("*.mmd"))]
    assert list(map("".join, found)) == ["".join(tags)] * 2, out.output


def test_pages_that_end_amid_a_table(scripted, tmp_path):
    """What was written until then is kept."""
    out = call("ocr", scripted.parent / "pages" / "1.png", "--out", tmp_path, "--model", scripted, "--device", "cpu",
               "--max-new-tokens", 10, "--workers", 0, "--retries", 0)  # fmt: skip
    [file] = tmp_path.glob("*.md")
    assert "w2" in file.read_text() and "</" not in file.read_text(), out.output


def test_pages_without_end(folder, tmp_path):
    """A loop is ended at its first turn, after another attempt, and the page counts as a bad one."""
    model = tmp_path / "granite-docling-258M"
    idefics3_kit.save(model, script=idefics3_kit.LOOP)
    out = call("ocr", folder.parent / "3.png", "--out", tmp_path / "out", "--model", model, "--device", "cpu",
               "--workers", 0, "--retries", 1, "--format", "jsonl")  # fmt: skip
    assert out.exit_code == 1, out.output
    [file] = (tmp_path / "out").glob("*.jsonl")
    page = json.loads(file.read_text())
    assert page["text"].startswith("# w1\n\nw2 w3 w4") and page["metadata"]["finish_reason"] == "loop"
    assert page["metadata"]["attempts"] == 2 and page["metadata"]["tokens"] < 1000


def test_pages_are_asked_about_as_published(folder, tmp_path):
    named = folder.parent / "granite-docling-258M"
    shutil.copytree(folder, named)
    # many words: one is little beside the rows of a page
    prompts, texts = {"published": [], "the same": [idefics3_kit.PAGE], "told": ["w5 \nw9 \n" * 60]}, {}
    for name, prompt in prompts.items():
        asked = [word for text in prompt for word in ("--prompt", text)]
        out = call("ocr", folder.parent / "0.png", "--out", tmp_path / name, "--model", named, "--device", "cpu",
                   "--max-new-tokens", 12, "--format", "jsonl", "--workers", 0, "--retries", 0, *asked)  # fmt: skip
        assert out.exit_code in (0, 1), out.output
        [file] = (tmp_path / name).glob("*.jsonl")
        texts[name] = json.loads(file.read_text())["text"]
    assert texts["published"] == texts["the same"] != texts["told"]


def test_what_it_is(folder):
    told = json.loads(call("inspect", folder, "--json").stdout)
    assert told["family"] == "idefics3"


def test_it_agrees_with_its_class(folder):
    out = call("verify", folder, "--against", folder, "--device", "cpu", "--new-tokens", 4)
    assert out.exit_code == 0, out.output
    assert "2 images, 17 tokens" in out.stdout and "100.0% of the tokens agree" in out.stdout


def test_a_chat_about_two_images(folder, scripted):
    pipes = {
        "random": vlm.load(folder, device="cpu"),
        "page": vlm.load(scripted, device="cpu"),
    }  # the server closes them
    pictures = [folder.parent / f"{i}.png" for i in (1, 3)]
    expected = pipes["random"].generate(images=pictures, prompt="<image><image>read", **GREEDY)
    with server_kit.serving(pipes) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
        ask = server_kit.asked("read", *pictures)
        answer = client.chat.completions.create(model="random", messages=ask, max_tokens=8, temperature=0)
        page = client.chat.completions.create(model="page", messages=ask, max_tokens=30, temperature=0)
    assert answer.choices[0].message.content == expected.text
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert page.choices[0].message.content == idefics3_kit.MARKDOWN and page.choices[0].finish_reason == "stop"


def test_more_images_than_there_is_room_for(folder):
    images = [word for _ in range(3) for word in ("--image", folder.parent / "3.png")]
    out = call("run", *images, "--prompt", "read", "--model", folder, "--device", "cpu", "--max-seq-len", 2000)
    assert "3264 of them rows of images" in one_sentence(out)


def test_a_processor_of_other_tiles(folder, tmp_path):
    """Tiles of a size that the network does not take."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    settings = json.loads((other / "preprocessor_config.json").read_text()) | {"max_image_size": {"longest_edge": 364}}
    (other / "preprocessor_config.json").write_text(json.dumps(settings))
    out = call("run", "--image", folder.parent / "3.png", "--prompt", "read", "--model", other, "--device", "cpu")
    assert "this model takes (3, 512, 512), or of an image that is cut into tiles of 512 × 512" in one_sentence(out)
