"""`vlm run` on models that read images of text: lines of TrOCR in one batch, tasks and questions of Donut."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import vlm
from tests.kits.cli_kit import ended
from tests.kits.models import tiny
from tests.kits.publications.donut_kit import FORMS, write_processor
from tests.parity.image_to_text.test_trocr import write_roberta

pytestmark = pytest.mark.usefixtures("cache_of_module")
SHORT = ("--device", "cpu", "--max-new-tokens", "10")
QUESTION = "what is the date"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(1)
    paths = [folder / f"{i}.png" for i in range(5)]
    for path in paths:
        Image.fromarray(random.integers(0, 256, (20, 90, 3), np.uint8)).save(path)
    return paths


def donut(form: str, folder):
    processor = write_processor(folder, FORMS[form])
    tiny.nougat(seed=4, vocab=len(processor.tokenizer)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    return donut("docvqa", tmp_path_factory.mktemp("docvqa"))


def named(pictures):
    return [word for path in pictures for word in ("--image", path)]


def test_lines_of_one_batch(pictures, tmp_path, capsys):
    tiny.trocr(seed=5, vocab_size=300).save_pretrained(tmp_path)
    write_roberta(tmp_path)
    pipe = vlm.load(tmp_path, device="cpu")
    texts = [pipe.generate(str(path), max_new_tokens=10).text for path in pictures]
    code, out, _ = ended(capsys, "run", *named(pictures), "--model", tmp_path, "--json", *SHORT)
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(line["image"], line["text"]) for line in lines] == list(zip(map(str, pictures), texts, strict=True))


def test_a_question_about_each_page(answering, pictures, capsys):
    pipe = vlm.load(answering, device="cpu")
    inputs = [{"images": [str(path)], "task": "docvqa", "question": QUESTION} for path in pictures[:2]]
    texts = [out.text for out in pipe.generate(inputs, max_new_tokens=10)]
    for task in ((), ("--task", "docvqa")):  # it was tuned for no other
        told = [*named(pictures[:2]), "--model", answering, "--question", QUESTION, *task]
        code, out, _ = ended(capsys, "run", *told, *SHORT)
        assert (code, out.splitlines()) == (0, texts)
    assert json.loads(texts[0])["question"] == QUESTION


MISTAKES = {
    "unknown": (("--task", "invoices"), "--task is 'invoices'; this model knows docvqa, iitcdip, synthdog."),
    "no question": ((), "task 'docvqa' answers a question; give one beside it, as --question."),
    "a question too many": (("--task", "synthdog", "--question", "who?"), "task 'synthdog' takes no question;"),
    "a prompt and a task": (("--task", "docvqa", "--prompt", "a"), "--prompt, --task were given together; an input"),
}


@pytest.mark.parametrize(("told", "says"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(told, says, answering, pictures, capsys):
    code, out, err = ended(capsys, "run", "--image", pictures[0], "--model", answering, *told, *SHORT)
    assert (code, out) == (2, "") and err.count("vlm: ") == 1 and says in err


def test_pages_of_a_job_are_of_the_task_that_the_model_was_tuned_for(answering, pictures, tmp_path, capsys):
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "a.png").write_bytes(pictures[0].read_bytes())
    receipts = donut("cord-v2", tmp_path / "receipts")
    text = (
        vlm.load(receipts, device="cpu")
        .generate({"images": [str(pictures[0])], "task": "cord-v2"}, max_new_tokens=10)
        .text
    )
    code, _, _ = ended(capsys, "ocr", pages, "--model", receipts, "-o", tmp_path / "out", *SHORT)
    assert code == 0 and (tmp_path / "out" / "a.md").read_text().strip() == text
    code, _, err = ended(capsys, "ocr", pages, "--model", answering, "-o", tmp_path / "other", *SHORT)
    assert code != 0 and "task 'docvqa' answers a question" in err


def test_a_question_about_the_pages_of_a_job(answering, pictures, tmp_path, capsys):
    asked = {"images": [str(pictures[0])], "question": QUESTION}
    text = vlm.load(answering, device="cpu").generate(asked, max_new_tokens=10).text
    job = ("ocr", pictures[0], "-o", tmp_path, "--workers", 0, "--question", QUESTION, *SHORT)
    code, _, err = ended(capsys, *job, "--model", answering)
    assert code == 0 and (tmp_path / f"{pictures[0].stem}.md").read_text().strip() == text, err
    code, _, err = ended(capsys, *job)
    assert code == 2 and "reads pages without a question; leave it out" in err


def test_tasks_are_of_models_that_have_them(pictures, capsys):
    page = ("run", "--image", pictures[0], *SHORT)
    code, _, err = ended(capsys, *page, "--question", "who?")
    assert code == 2 and "nougat has no task that takes a --question; leave it out" in err
    code, _, err = ended(capsys, *page, "--task", "docvqa")
    assert code == 2 and "nougat has no tasks of its own, and no tuned prompts are loaded" in err
    code, _, err = ended(capsys, "run", "--text", "a", "--task", "docvqa", *SHORT)
    assert code == 2 and "--task is for images, a request each; leave it out." in err


def test_verified_against_its_folder(answering, tmp_path, capsys):
    """A task that needs a question is no obstacle, nor that Nougat has the same networks."""
    code, _, err = ended(capsys, "build", answering, "-o", tmp_path / "engine")
    assert code == 0, err
    told = (tmp_path / "engine", "--against", answering, "--new-tokens", "4", "--device", "cpu")
    code, out, err = ended(capsys, "verify", *told)
    assert code == 0 and "100.0% of the tokens agree" in out, err
