"""Donut against Hugging Face, FP32 on the CPU: tasks, tokens, texts as JSON and pixels."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import DonutImageProcessor

from tests.kits.models import tiny
from tests.kits.models.engines import pipeline
from tests.kits.publications.donut_kit import CORD, DOCVQA, FORMS, RVLCDIP, write_processor
from tests.parity.cases import parity
from visual_engines.answers.donut_json import MAX_DEPTH, read_fields
from vlm.api.pipeline import Pipeline
from vlm.errors import InputError
from vlm.processing.media.image_processor import ImageProcessor
from vlm.registry.catalogs import family

NEW = 20


class Case:
    """A model of a form, its processor and an engine."""

    def __init__(self, form: str, folder):
        self.processor = write_processor(folder / "hf", FORMS[form])
        self.model = tiny.nougat(seed=4, vocab=len(self.processor.tokenizer))
        self.pipe: Pipeline = pipeline(self.model, folder)
        random = np.random.default_rng(2)
        sizes = ((70, 40), (30, 90), (64, 48))
        self.pages = [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]

    @torch.no_grad()
    def theirs(self, prompt: str, **options) -> list[tuple[list[int], object]]:
        """The new tokens and fields of each page, as Donut's cards have it; no text keeps <s>."""
        tokenizer, found = self.processor.tokenizer, []
        begun = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
        for page in self.pages:
            pixels = self.processor(page, return_tensors="pt").pixel_values
            ids = self.model.generate(pixels, decoder_input_ids=begun, max_new_tokens=NEW, **options)
            text = tokenizer.batch_decode(ids)[0]
            for token in (tokenizer.eos_token, tokenizer.pad_token, "<s>", prompt.partition(">")[0] + ">"):
                text = text.replace(token, "", 1 if token in prompt else -1)
            new = ids[0, begun.shape[1] :].tolist()
            found.append((new[: new.index(2) + 1] if 2 in new else new, self.processor.token2json(text.strip())))
        return found


QUESTION = "<s_docvqa><s_question>what is the date</s_question><s_answer>"
ASKED = {"question": "what is the date"}
# what an input says -> where Hugging Face's output begins
TASKS = {
    "docvqa": ("docvqa", ASKED, QUESTION),
    "cord-v2": ("cord-v2", {}, "<s_cord-v2>"),
    "rvlcdip": ("rvlcdip", {"task": "rvlcdip"}, "<s_rvlcdip>"),
    "pretraining": ("base", {"task": "synthdog"}, "<s_synthdog>"),
    "no task": ("base", {}, "<s>"),
    "a prompt": ("cord-v2", {"prompt": "<s_cord-v2><s_menu>"}, "<s_cord-v2><s_menu>"),
    "one of several": ("several", {"task": "docvqa", **ASKED}, QUESTION),
    "another of several": ("several", {"task": "cord-v2"}, "<s_cord-v2>"),
}


@pytest.mark.parametrize("case", parity({"donut": TASKS}))
def test_tasks(case, tmp_path):
    form, fields, prompt = case.make
    subject = Case(form, tmp_path)
    assert subject.pipe.family.name == case.family
    inputs = [{"images": [page], **fields} if fields else page for page in subject.pages]
    for options in ({}, {"num_beams": 3}):
        found = subject.pipe.generate(inputs, max_new_tokens=NEW, **options)
        assert [(out.token_ids, json.loads(out.text)) for out in found] == subject.theirs(prompt, **options)


def test_tasks_of_one_batch(tmp_path):
    subject = Case("several", tmp_path)
    asked = [{"task": "docvqa", **ASKED}, {"task": "cord-v2"}, {"task": "iitcdip"}]
    inputs = [{"images": [page], **fields} for page, fields in zip(subject.pages, asked, strict=True)]
    alone = [subject.pipe.generate(one, max_new_tokens=NEW).token_ids for one in inputs]
    assert [out.token_ids for out in subject.pipe.generate(inputs, max_new_tokens=NEW)] == alone


MISTAKES = {
    "unknown": ("docvqa", {"task": "cord"}, "task is 'cord'; this model knows docvqa, iitcdip, synthdog"),
    "no question": ("docvqa", {}, "task 'docvqa' answers a question; give one"),
    "an empty question": ("docvqa", {"question": " "}, "task 'docvqa' answers a question; give one"),
    "a question too many": ("cord-v2", ASKED, "task 'cord-v2' takes no question; leave it out"),
    "whose question": ("several", ASKED, "a question is of a task; this model knows cord-v2, docvqa"),
    "two beginnings": ("cord-v2", {"task": "cord-v2", "prompt": "<s>"}, "prompt, task were given together"),
    "a prompt and a question": ("docvqa", {"prompt": "<s>", **ASKED}, "prompt, question were given together"),
    "a text": ("cord-v2", {"text": "a"}, "donut has no text encoder"),
}


@pytest.fixture(scope="module")
def pipes(tmp_path_factory):
    forms = {form for form, *_ in MISTAKES.values()}
    return {form: Case(form, tmp_path_factory.mktemp(form)).pipe for form in forms}


@pytest.mark.parametrize(("form", "fields", "says"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(form, fields, says, pipes):
    with pytest.raises(InputError, match=says):
        pipes[form].generate({"images": [Image.new("RGB", (20, 20))], **fields})


def test_a_model_without_tasks_says_so(tmp_path):
    pipe = pipeline(tiny.nougat(), tmp_path)
    page = torch.zeros(3, 64, 48)
    with pytest.raises(InputError, match="nougat has no task that takes a question"):
        pipe.generate({"pixel_values": page, **ASKED})
    with pytest.raises(InputError, match="no tuned prompts are loaded"):
        pipe.generate({"pixel_values": page, "task": "docvqa"})


TEXTS = [
    "",
    "no field <at all",
    "<s_total>5</s_total>",
    "<s_menu><s_nm>tea</s_nm><s_price> 5 </s_price><sep/><s_nm>coffee</s_nm></s_menu><s_total>10</s_total>",
    "<s_menu><s_nm>tea</s_nm><sep/><s_nm>a<sep/>b</s_nm></s_menu>",
    "<s_question>is it</s_question><s_answer><yes/></s_answer>",
    "<s_class><letter/></s_class>",
    "<s_nm>a</s_nm><sep/><s_nm>b</s_nm><sep/>",
    "<s_nm>a</s_nm><sep/>",
    "<s_nm>never ends <s_price>5</s_price>",
    "</s_nm><s_nm>ends first</s_nm>",
    "<s_NM>a case</s_nm> <s_price>5</S_PRICE>",
    "<s_a+b>an unknown key</s_a+b>",
    "<s_nm></s_nm><s_price>5</s_price>",
    "<s_menu><s_nm></s_menu><s_total></s_total>",
    "<s_menu><s_nm>a</s_nm><s_menu>b</s_menu></s_menu>",
    "<s_menu></s_nm><s_nm></s_menu>",
    "<s_nm>two\nlines</s_nm><s_",
    "<sep/><s_nm>a</s_nm>",
]


@pytest.fixture(scope="module")
def processor(tmp_path_factory):
    return write_processor(tmp_path_factory.mktemp("processor"), (*DOCVQA, *CORD, *RVLCDIP))


@pytest.mark.parametrize("text", TEXTS)
def test_fields_are_token2jsons(text, processor):
    assert read_fields(text) == processor.token2json(text)


def test_fields_of_texts_that_models_make_up(processor):
    random = np.random.default_rng(0)
    parts = [*DOCVQA, *CORD, "<sep/>", "▁5", " tea ", ">", "<s_"]
    for _ in range(400):
        text = "".join(random.choice(parts, random.integers(1, 14)))
        assert read_fields(text) == processor.token2json(text), text


def test_depth_has_a_limit():
    names, depth = range(1000), 0
    begins, ends = "".join(f"<s_{i}>" for i in names), "".join(f"</s_{i}>" for i in reversed(names))
    fields = read_fields(f"{begins}x{ends}")
    while isinstance(fields, dict):
        fields, depth = fields[str(depth)], depth + 1
    assert depth == MAX_DEPTH + 1


SETTINGS = {
    "published": {"size": [48, 64], "resample": 2, "do_align_long_axis": False, "do_thumbnail": True, "do_pad": True},
    "turned": {"size": {"height": 64, "width": 48}, "do_align_long_axis": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_pixels(settings, tmp_path):
    file = {"feature_extractor_type": "DonutFeatureExtractor", **settings}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(file))
    ours = ImageProcessor.from_dir(tmp_path, family("donut").image_processors)
    theirs = DonutImageProcessor.from_pretrained(tmp_path)
    random = np.random.default_rng(0)
    for size in ((300, 200), (90, 400), (64, 48), (500, 31)):
        page = Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8))
        assert torch.equal(ours([page]), theirs([page], return_tensors="pt")["pixel_values"]), size
