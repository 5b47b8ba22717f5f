"""`vlm run` on Florence-2: tasks as JSON in their pixels, drawn on them, and what is wrong in one sentence."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import vlm
from tests.kits.cli_kit import ended
from tests.kits.publications import florence_kit
from visual_engines.families.florence2 import TASKS
from vlm_app.core.overlay import draw

pytestmark = pytest.mark.usefixtures("cache_of_module")
SHORT = ("--device", "cpu", "--max-new-tokens", "24")
REGION = "<loc_52><loc_332><loc_932><loc_774>"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """In Microsoft's layout, whose tokenizer lacks the places."""
    folder = tmp_path_factory.mktemp("florence") / "Florence-2-base"
    florence_kit.write(florence_kit.florence2(), folder, remote=True)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(1)
    paths = [folder / f"{i}.png" for i in range(3)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (60, 90, 3), np.uint8)).save(path)
    return paths


def test_a_task_of_each_picture(model, pictures, capsys):
    images = [word for path in pictures for word in ("--image", path)]
    pipe = vlm.load(model, device="cpu")
    for task, question in (("REGION_PROPOSAL", None), ("OCR_WITH_REGION", None), ("REGION_TO_SEGMENTATION", REGION)):
        inputs = [{"images": [str(path)], "task": task, "question": question} for path in pictures]
        texts = [out.text for out in pipe.generate(inputs, max_new_tokens=24)]
        told = ("--task", task, *(() if question is None else ("--question", question)))
        code, out, _ = ended(capsys, "run", *images, "--model", model, *told, *SHORT)
        assert (code, out.splitlines()) == (0, texts)
        assert all(isinstance(json.loads(text), dict) for text in texts)
        prompt = f"<{task}>{question or ''}"
        code, out, _ = ended(capsys, "run", *images, "--model", model, "--prompt", prompt, *SHORT)
        assert (code, out.splitlines()) == (0, texts)


def test_a_text_that_a_task_of_pages_is_about(model, pictures, tmp_path, capsys):
    asked = {"images": [str(pictures[0])], "task": "REGION_TO_SEGMENTATION", "question": REGION}
    text = vlm.load(model, device="cpu").generate(asked, max_new_tokens=24).text
    job = ("ocr", pictures[0], "-o", tmp_path, "--workers", 0, "--model", model, *SHORT)
    told = ("--prompt", "<REGION_TO_SEGMENTATION>", "--question", REGION)
    code, _, err = ended(capsys, *job, *told)
    assert code == 0 and (tmp_path / "0.md").read_text().strip() == text, err
    for told, says in ((("--question", REGION), "a --question is of a task"),
                       (("--prompt", "<OD>", "--question", "a car"), "task 'OD' takes no question")):  # fmt: skip
        code, _, err = ended(capsys, *job, *told)
        assert code == 2 and says in err
    lines = tmp_path / "lines.jsonl"
    line = {"images": [str(pictures[0])], "task": "REGION_TO_SEGMENTATION", "question": REGION}
    lines.write_text(f"{json.dumps(line)}\n")
    code, out, err = ended(capsys, "generate", "--file", lines, "--model", model, *SHORT)
    assert (code, out.strip()) == (0, " ".join(text.splitlines())), err


MISTAKES = {
    "unknown": (("--task", "DETECT"), ("--task is 'DETECT'; this model knows ", *TASKS)),
    "no text": (("--task", "CAPTION_TO_PHRASE_GROUNDING"), ("answers a question; give one beside it, as --question.",)),
    "a text too many": (("--task", "OD", "--question", "a car"), ("task 'OD' takes no question; leave it out.",)),
    "no task": (("--question", "a car"), ("a --question is of a task; this model knows ", *TASKS)),
    "overlay of a text": (("--task", "OCR", "--save-overlay", "{}/a.png"), ("the answer names no places",)),
    "overlay of no kind": (("--task", "OD", "--save-overlay", "{}/a.txt"), ("names no kind of image",)),
    "overlay nowhere": (("--task", "OD", "--save-overlay", "{}/b/a.png"), ("lies in no folder that exists",)),
}


@pytest.mark.parametrize(("told", "says"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(told, says, model, pictures, tmp_path, capsys):
    told = [word.format(tmp_path) for word in told]
    code, _, err = ended(capsys, "run", "--image", pictures[0], "--model", model, *told, *SHORT)
    assert code == 2 and err.count("vlm: ") == 1 and all(part in err for part in says), err


def test_an_overlay_is_of_one_image(model, pictures, tmp_path, capsys):
    told = ("--image", pictures[0], "--image", pictures[1], "--task", "OD", "--save-overlay", tmp_path / "a.png")
    code, _, err = ended(capsys, "run", *told, "--model", model, *SHORT)
    assert code == 2 and "--save-overlay draws on one image, got 2" in err


def test_regions_are_drawn_on_the_picture(model, pictures, tmp_path, capsys):
    drawn = tmp_path / "drawn.png"
    told = ("--task", "OCR_WITH_REGION", "--save-overlay", drawn)
    code, out, err = ended(capsys, "run", "--image", pictures[0], "--model", model, *told, *SHORT)
    assert code == 0, err
    plain, found = Image.open(pictures[0]).convert("RGB"), Image.open(drawn)
    assert found.size == plain.size
    draw(plain, json.loads(out))
    assert plain.tobytes() == found.tobytes()


ANSWERS = {
    "boxes": {"bboxes": [[10, 10, 80, 50]], "labels": ["car"]},
    "quads": {"quad_boxes": [[10, 10, 80, 10, 80, 50, 10, 50]], "labels": ["STOP"]},
    "polygons": {"polygons": [[[10, 10, 80, 10, 80, 50, 10, 50], []]], "labels": ["car"]},
    "both": {"bboxes": [[10, 10, 80, 50]], "bboxes_labels": ["car"], "polygons": [], "polygons_labels": []},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_outlines_lie_where_they_are_told(answer):
    picture = Image.new("RGB", (100, 60), "white")
    draw(picture, answer)
    colours = {picture.getpixel(at) for at in ((80, 30), (10, 40), (40, 50))}
    assert len(colours) == 1 and (255, 255, 255) not in colours
    assert picture.getpixel((60, 40)) == picture.getpixel((95, 55)) == (255, 255, 255)


def test_an_answer_without_regions_leaves_the_picture_as_it_is():
    picture = Image.new("RGB", (100, 60), "white")
    draw(picture, {"bboxes": [], "labels": []})
    assert picture.getcolors() == [(6000, (255, 255, 255))]


def test_verified_against_transformers_own_layout(model, tmp_path, capsys):
    """Which Microsoft's is not."""
    florence_kit.write(florence_kit.florence2(), tmp_path / "native", remote=False)
    code, _, err = ended(capsys, "build", model, "-o", tmp_path / "engine")
    assert code == 0, err
    told = ("--new-tokens", "4", "--device", "cpu")
    code, out, err = ended(capsys, "verify", tmp_path / "engine", "--against", tmp_path / "native", *told)
    assert code == 0 and "100.0% of the tokens agree" in out, err
    code, _, err = ended(capsys, "verify", tmp_path / "engine", "--against", model, *told)
    assert code == 2 and "is in Microsoft's own layout" in err and err.count("vlm: ") == 1
