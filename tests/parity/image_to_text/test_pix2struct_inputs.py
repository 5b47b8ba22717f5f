"""Pix2Struct's pictures, prompts and questions against Hugging Face's processor."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Pix2StructImageProcessor
from transformers.models.pix2struct import image_processing_pix2struct as published

from tests.kits.models import tiny
from tests.kits.publications import pix2struct_kit as kit
from visual_engines.images import question_header
from vlm.api.pipeline import Pipeline
from vlm.build.builder import build_engine
from vlm.config import BuildConfig, RuntimeConfig
from vlm.convert.folder import convert_folder
from vlm.errors import EngineError, InputError, VlmWarning
from vlm.limits import MAX_QUESTION_CHARACTERS
from vlm.processing.media.image_processor import ImageProcessor
from vlm.processing.media.pool import MediaConfig
from vlm.processing.media.reading import read_pixels
from vlm.registry.catalogs import family
from vlm_app.reference.huggingface import flattened

NEW = 12
QUESTIONS = ("What is the date?", "which bar is the highest, " * 12, "two\nlines\tand  blanks", "q")


class Subject:
    """A saved model with its processor, and an engine of it."""

    def __init__(self, folder, *, is_vqa: bool):
        self.model = kit.save(folder / "hf", is_vqa=is_vqa)
        self.processor = kit.processor(is_vqa=is_vqa)
        checkpoint = convert_folder(folder / "hf", folder / "checkpoint")
        engine = build_engine(checkpoint, folder / "engine", BuildConfig(max_batch_size=4))
        self.pipe = Pipeline(engine, RuntimeConfig(device="cpu"))
        self.pages = kit.pictures()

    @torch.no_grad()
    def theirs(self, page: Image.Image, text: str | None = None, **options) -> list[int]:
        given = self.processor(
            images=page, text=text, return_tensors="pt", add_special_tokens=False, max_patches=kit.PATCHES
        )
        begun = given["decoder_input_ids"].shape[1] if "decoder_input_ids" in given else 0
        ids = self.model.generate(**given, max_new_tokens=NEW, do_sample=False, **options)[0, 1 + begun :]
        return tiny.up_to_end(ids.tolist(), 1)


@pytest.fixture(scope="module")
def captioner(tmp_path_factory):
    return Subject(tmp_path_factory.mktemp("captioner"), is_vqa=False)


@pytest.fixture(scope="module")
def answerer(tmp_path_factory):
    return Subject(tmp_path_factory.mktemp("answerer"), is_vqa=True)


@pytest.fixture
def given_font(tmp_path, monkeypatch):
    """Lets Hugging Face fetch the font of these folders in the place of Arial."""
    path = tmp_path / kit.FONT
    path.write_bytes(kit.font_bytes())

    class Hub:
        def hf_hub_download(self, *names) -> str:
            return str(path)

    monkeypatch.setattr(published, "hf_api", Hub)
    return path


SETTINGS = {
    "published": {"do_convert_rgb": True, "do_normalize": True, "is_vqa": False, "max_patches": 2048,
                  "patch_size": {"height": 16, "width": 16}, "processor_class": "Pix2StructProcessor"},
    "more patches": {"max_patches": 4096, "is_vqa": True},
    "not normalized": {"do_normalize": False, "max_patches": 77, "patch_size": {"height": 8, "width": 8}},
    "nothing said": {},
}  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_patches(settings, tmp_path):
    settings = {"image_processor_type": "Pix2StructImageProcessor"} | settings
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    ours = ImageProcessor.from_dir(tmp_path, family("pix2struct").image_processors)
    theirs = Pix2StructImageProcessor.from_pretrained(tmp_path)
    random = np.random.default_rng(0)
    side = settings.get("patch_size", {"height": 16})["height"]
    for size in ((300, 400), (500, 31), (64, 64), (1, 700), (900, 1), (2, 3)):
        picture = Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8))
        want = theirs(picture, return_tensors="pt", is_vqa=False)
        found = flattened(ours([picture]), side)
        real = want["attention_mask"][0] > 0
        assert torch.equal(found["flattened_patches"][0], want["flattened_patches"][0, real]), size


DAMAGED = {
    "huge": ({"max_patches": 10**9}, "scales images to more than 4,096 pixels a side"),
    "oblong": ({"patch_size": {"height": 16, "width": 8}}, "it must have an equal height and width"),
    "no size": ({"patch_size": 16}, "it must have an equal height and width"),
}


@pytest.mark.parametrize(("settings", "says"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_settings(settings, says, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(EngineError, match=says):
        ImageProcessor.from_dir(tmp_path, family("pix2struct").image_processors)


@pytest.mark.parametrize("size", [(40, 200), (700, 2000), (500, 30)], ids=str)
@pytest.mark.parametrize("question", QUESTIONS)
def test_headers(question, size, given_font):
    """The picture that a question makes is Hugging Face's to the last pixel, with the same font."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8))
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    want = Pix2StructImageProcessor().render_header(pixels, question, font_path=str(given_font))
    found = question_header.with_header(picture, question, given_font.parent)
    assert np.array_equal(np.array(found), want.permute(1, 2, 0).numpy())


def test_answers(answerer, given_font):
    """Another question, another answer; with beams; and what another process reads."""
    inputs = [{"images": [page], "question": q} for page, q in zip(answerer.pages, QUESTIONS, strict=True)]
    for options in ({}, {"num_beams": 3}):
        found = answerer.pipe.generate(inputs, max_new_tokens=NEW, **options)
        theirs = [answerer.theirs(one["images"][0], one["question"], **options) for one in inputs]
        assert [out.token_ids for out in found] == theirs
    page = answerer.pages[0]
    requests = [answerer.pipe.request({"images": [page], "question": question}) for question in QUESTIONS]
    assert len({request.source_image.key for request in requests}) == len(QUESTIONS)
    source = answerer.pipe.processor.processor_source
    [[elsewhere]] = read_pixels([np.array(page)], source, MediaConfig(exact_pixels=True), QUESTIONS[1])
    given = answerer.pipe.processor.with_pixels({"question": QUESTIONS[1]}, [[elsewhere]])
    assert answerer.pipe.request(given).source_image.key == requests[1].source_image.key


def test_captions(captioner):
    """Alone, and going on with words: a prompt, which may be called a question."""
    found = captioner.pipe.generate([{"images": [page]} for page in captioner.pages], max_new_tokens=NEW)
    assert [out.token_ids for out in found] == [captioner.theirs(page) for page in captioner.pages]
    text = "a picture of the chart"
    for name in ("prompt", "question"):
        inputs = [{"images": [page], name: text} for page in captioner.pages]
        found = captioner.pipe.generate(inputs, max_new_tokens=NEW)
        assert [out.token_ids for out in found] == [captioner.theirs(page, text) for page in captioner.pages]
    assert [len(captioner.pipe.request(one).decoder_prompt_token_ids) for one in inputs] == [6] * 4


MISTAKES = {
    "no question": ({}, "answers a question, which is drawn on its image"),
    "an empty one": ({"question": " \n"}, "answers a question, which is drawn on its image"),
    "no text": ({"question": 5}, "answers a question, which is drawn on its image"),
    "a long one": ({"question": "a" * (MAX_QUESTION_CHARACTERS + 1)}, "4,097 characters, 4,096 can be drawn"),
    "a task": ({"question": "q", "task": "docvqa"}, "pix2struct has no tasks of its own"),
}


@pytest.mark.parametrize(("fields", "says"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(fields, says, answerer):
    with pytest.raises(InputError, match=says):
        answerer.pipe.generate({"images": [answerer.pages[0]], **fields})


def test_a_question_needs_a_picture(answerer, captioner):
    pixels = torch.zeros(3, 8, 8)
    assert len(answerer.pipe.generate({"pixel_values": pixels}, max_new_tokens=1).token_ids) == 1
    with pytest.raises(InputError, match="the question is drawn on pictures; give images"):
        answerer.pipe.generate({"pixel_values": pixels, "question": "q"})
    with pytest.raises(InputError, match="prompt, question were given together"):
        captioner.pipe.generate({"pixel_values": pixels, "question": "a", "prompt": "a"})


def test_slivers_are_not_enlarged_for_ever():
    """A line of one pixel's width, below a question: 11 billion pixels as it comes."""
    picture = question_header.with_header(Image.new("RGB", (1, 5000), "red"), "what is it? " * 20, None)
    assert picture.width * picture.height <= 2**26 and picture.height > 5000 * picture.width
    assert picture.getpixel((0, picture.height - 1)) == (255, 0, 0)


@pytest.fixture
def no_font(monkeypatch):
    """Lets no font be installed or fetched."""
    monkeypatch.setattr(question_header, "INSTALLED", ("no such font.ttf",))
    monkeypatch.setattr(question_header, "_fetched", list)
    question_header.font.cache_clear()
    yield
    question_header.font.cache_clear()


def test_fonts(tmp_path, no_font, monkeypatch):
    """The folder's is first; damaged ones are passed over; Pillow's own is told."""
    (tmp_path / "Broken.TTF").write_bytes(b"no font")
    with pytest.warns(VlmWarning, match="the published models saw Arial"):
        assert question_header.font(tmp_path).getname() == ("Aileron", "Regular")
    (tmp_path / "Own.ttf").write_bytes(kit.font_bytes())
    question_header.font.cache_clear()
    assert question_header.font(tmp_path).path == str(tmp_path / "Own.ttf")
    monkeypatch.setattr(question_header, "_fetched", lambda: [str(tmp_path / "Own.ttf")])
    question_header.font.cache_clear()
    assert question_header.font(None).path == str(tmp_path / "Own.ttf")


def test_the_font_of_a_folder_goes_with_it(answerer):
    assert (answerer.pipe.engine.processor_dir / kit.FONT).read_bytes() == kit.font_bytes()
