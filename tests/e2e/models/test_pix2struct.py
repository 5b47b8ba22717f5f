"""The verbs and a server on Pix2Struct: questions drawn on pictures, captions that go on with words."""

from __future__ import annotations

import base64
import json
import os

import numpy as np
import openai
import pytest
import torch

import vlm
from tests.kits.cli_kit import call, ended, one_sentence
from tests.kits.publications import pix2struct_kit as kit
from tests.kits.servers.server_kit import serving
from vlm.errors import InputError
from vlm_app.server.tensors.inputs import read_batch

pytestmark = pytest.mark.usefixtures("cache_of_module")
SHORT = ("--device", "cpu", "--max-new-tokens", "10")
QUESTION, WORDS = "what is the date", "a picture of"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    paths = [folder / f"{number}.png" for number in range(2)]
    for path, picture in zip(paths, kit.pictures(), strict=False):
        picture.save(path)
    return paths


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Of a model that answers, and of one that captions."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("deplot", "captions"):
        kit.save(folder / name, is_vqa=name == "deplot")
    return folder


def text_of(folder, picture, **fields) -> str:
    return vlm.load(folder, device="cpu").generate({"images": [str(picture)], **fields}, max_new_tokens=10).text


def test_a_question_about_each_picture(folders, pictures, capsys):
    answers = [text_of(folders / "deplot", picture, question=QUESTION) for picture in pictures]
    named = [word for picture in pictures for word in ("--image", picture)]
    code, out, err = ended(capsys, "run", *named, "--question", QUESTION, "--model", folders / "deplot", *SHORT)
    assert (code, out.splitlines()) == (0, answers), err
    assert text_of(folders / "deplot", pictures[0], question="is it a chart") != answers[0]


def test_answers_are_scored(folders, pictures, tmp_path):
    """A path may be one from the file's folder."""
    want = text_of(folders / "deplot", pictures[0], question=QUESTION)
    rows = [{"image": os.path.relpath(pictures[0], tmp_path), "question": QUESTION, "answer": answer}
            for answer in (want, f"not {want}")]  # fmt: skip
    bad = ['{"image": "a.png", "answer": "w1"}', '{"image": 3, "question": "w", "answer": "w"}']
    (tmp_path / "questions.jsonl").write_text("\n".join([*map(json.dumps, rows), *bad]))
    asked = ("eval", tmp_path / "questions.jsonl", "--model", folders / "deplot", *SHORT)
    result = call(*asked, "--task", "answer", "--json", tmp_path / "r.json", "--exact-threshold", 60)
    assert result.exit_code == 1 and "exact 50.00 is below 60" in result.stderr
    found = json.loads((tmp_path / "r.json").read_text())
    assert [row["vlm"] for row in found["outputs"]] == [want, want] and found["outputs"][0]["text"] == QUESTION
    first, second = found["left_out"]
    assert 'or "image", "question" and "answer"' in first and second.endswith("its images are no list of paths")
    assert "asks about an image, and --task is translate; give --task answer" in one_sentence(call(*asked))
    refused = one_sentence(call(*asked, "--task", "answer", "--compare-hf"))
    assert "--compare-hf is of --task translate and summarize" in refused


def test_no_question_is_one_sentence(folders, pictures, capsys):
    code, out, err = ended(capsys, "run", "--image", pictures[0], "--model", folders / "deplot", *SHORT)
    assert (code, out) == (2, "") and err.count("vlm: ") == 1
    assert "this model answers a question, which is drawn on its image; give one beside it, as --question." in err


def test_captions_go_on_with_words(folders, pictures, capsys):
    told = ("run", "--image", pictures[0], "--model", folders / "captions", *SHORT)
    texts = {}
    for name, more in (("none", ()), ("prompt", ("--prompt", WORDS)), ("question", ("--question", WORDS))):
        code, texts[name], err = ended(capsys, *told, *more)
        assert code == 0, err
    assert texts["none"].strip() == text_of(folders / "captions", pictures[0])
    assert texts["prompt"] == texts["question"] != texts["none"]


def test_pages_of_a_job(folders, pictures, tmp_path, capsys):
    """DePlot is asked for the table that it was trained to write; another model needs a question."""
    table = "Generate underlying data table of the figure below:"
    job = ("ocr", pictures[0], "--workers", 0, "--format", "mmd", *SHORT)
    asked = {"a": ((), table), "b": (("--prompt", QUESTION), QUESTION), "c": (("--question", QUESTION), QUESTION)}
    for name, (more, question) in asked.items():
        code, _, err = ended(capsys, *job, "--model", folders / "deplot", "-o", tmp_path / name, *more)
        assert code == 0, err
        text = (tmp_path / name / "0.mmd").read_text().strip()
        assert text == text_of(folders / "deplot", pictures[0], question=question)
    (folders / "docvqa").symlink_to(folders / "deplot")
    code, _, err = ended(capsys, *job, "--model", folders / "docvqa", "-o", tmp_path / "e")
    assert code == 2 and "answers a question, which is drawn on each page; give it with --question." in err
    job = (*job, "--model", folders / "captions", "-o", tmp_path / "d", "--prompt", WORDS)
    code, _, err = ended(capsys, *job, "--question", WORDS)
    assert code == 2 and "--prompt, --question were given together; give one of them." in err
    code, _, err = ended(capsys, *job)
    assert code == 0, err
    text = (tmp_path / "d" / "0.mmd").read_text().strip()
    assert text == text_of(folders / "captions", pictures[0], prompt=WORDS)


def test_compared_with_hugging_face(folders, pictures, tmp_path, capsys):
    code, _, err = ended(capsys, "build", folders / "deplot", "-o", tmp_path / "engine")
    assert code == 0, err
    told = (tmp_path / "engine", "--against", folders / "deplot", "--new-tokens", "4", "--device", "cpu")
    code, out, err = ended(capsys, "verify", *told)
    assert code == 0 and "100.0% of the tokens agree" in out, err
    told = ("--image", pictures[0], "--question", QUESTION, "--model", folders / "deplot", "--check-accuracy")
    code, _, err = ended(capsys, "run", *told, *SHORT)
    assert code == 0 and "token agreement with Hugging Face 100.00%" in err


def test_a_server_takes_the_words_of_a_message_as_the_question(folders, pictures):
    """Or the field of that name; one of the two."""
    pipe = vlm.load(folders / "deplot", device="cpu")
    answer = text_of(folders / "deplot", pictures[0], question=QUESTION)
    url = f"data:image/png;base64,{base64.b64encode(pictures[0].read_bytes()).decode()}"
    image, words = {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}
    with serving({"deplot": pipe}) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="-")

        def ask(*parts: dict, **told: str) -> str:
            turn = [{"role": "user", "content": [*parts]}]
            found = client.chat.completions.create(model="deplot", messages=turn, max_tokens=10, extra_body=told)
            return found.choices[0].message.content

        assert ask(image, words) == ask(image, question=QUESTION) == answer
        with pytest.raises(openai.BadRequestError, match="answers a question, which is drawn on its image"):
            ask(image)
        with pytest.raises(openai.BadRequestError, match="the question was given in the message and besides it"):
            ask(image, words, question=QUESTION)
        found = client.embeddings.create(model="deplot", input=url, extra_body={"question": QUESTION}).data[0].embedding
        rows = pipe.encode({"images": [pictures[0]], "question": QUESTION}).last_hidden_state.mean(0)
        torch.testing.assert_close(torch.tensor(found), rows / rows.norm())
        with pytest.raises(openai.BadRequestError, match="answers a question, which is drawn on its image") as caught:
            client.embeddings.create(model="deplot", input=url)
        assert caught.value.param == "question"


def test_texts_of_tensors_are_questions_or_beginnings(folders, pictures):
    """As KServe's and Triton's clients send them."""
    text, image = np.array([[QUESTION.encode()]], object), np.array([[pictures[0].read_bytes()]], object)
    for name, field in (("deplot", "question"), ("captions", "prompt")):
        processor = vlm.load(folders / name, device="cpu").processor
        [item] = read_batch(processor, {"text_input": text, "image": image})
        assert item.source == {field: QUESTION} and item.files == [pictures[0].read_bytes()]
        [item] = read_batch(processor, {"question": text, "image": image})
        assert item.source["question"] == QUESTION
    processor = vlm.load(folders / "deplot", device="cpu").processor
    with pytest.raises(InputError, match="sent as text_input and as question"):
        read_batch(processor, {"question": text, "text_input": text, "image": image})


def test_calibrated_with_questions(folders, pictures, tmp_path, capsys):
    """Of a file as they are asked; a picture without one is told."""
    lines = tmp_path / "questions.jsonl"
    asked = [{"image": str(picture), "question": f"{QUESTION} {i}"} for picture in pictures for i in range(2)]
    lines.write_text("\n".join(map(json.dumps, asked)))
    told = ("quantize", folders / "deplot", "--format", "smoothquant", "--max-new-tokens", 4, "--device", "cpu")
    code, _, err = ended(capsys, *told, "--calibrate", lines, "-o", tmp_path / "quantized")
    assert code == 0, err
    code, _, err = ended(capsys, *told, "--calibrate", pictures[0].parent, "-o", tmp_path / "other")
    assert code == 2 and "answers a question, which is drawn on its image; give one beside it, as `question`." in err
