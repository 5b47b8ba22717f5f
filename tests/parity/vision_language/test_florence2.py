"""Florence-2 against Hugging Face's class and processor, FP32 on the CPU: both layouts, tasks, tokens and answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessor
from transformers.image_processing_utils import get_size_dict

from tests.kits.models import tiny
from tests.kits.publications import florence_kit
from tests.kits.publications import published_kit as kit
from tests.parity.cases import parity
from visual_engines.answers.florence2_answers import answer, read_answer
from visual_engines.families.florence2 import TASKS
from visual_engines.models.florence2_config import parse
from vlm.api.load import load
from vlm.api.pipeline import Pipeline
from vlm.errors import ConfigError, InputError
from vlm.processing.media.image_processor import ImageProcessor
from vlm.processing.media.pool import MediaConfig
from vlm.processing.media.reading import read_pixels
from vlm.registry.catalogs import family
from vlm.requests.answer_form import AnswerForm

NEW = 24
REGION = "<loc_52><loc_332><loc_932><loc_774>"
QUESTIONS = {task: REGION if task.startswith("REGION_TO") else "a green car" for task in TASKS if "{" in TASKS[task]}


class Case:
    """A model in a layout, its processor and an engine."""

    def __init__(self, remote: bool, folder, **options):
        self.model = florence_kit.florence2(**options)
        self.processor = florence_kit.write(self.model, folder / "hf", remote=remote)
        self.pipe: Pipeline = load(folder / "hf", device="cpu", cache_dir=folder / "cache")
        random = np.random.default_rng(2)
        sizes = ((70, 40), (30, 90), (64, 48))
        self.pages = [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]

    @torch.no_grad()
    def theirs(self, text: str, page: Image.Image, **options) -> list[int]:
        inputs = self.processor(text=text, images=page, return_tensors="pt")
        options = {"num_beams": 1, "max_new_tokens": NEW, "do_sample": False} | options
        [new] = self.model.generate(**inputs, **options)[:, 1:].tolist()
        return new[: new.index(2) + 1] if 2 in new else new

    @torch.no_grad()
    def log_probabilities(self, text: str, page: Image.Image, tokens: list[int]) -> torch.Tensor:
        inputs = self.processor(text=text, images=page, return_tensors="pt")
        logits = self.model(**inputs, decoder_input_ids=torch.tensor([[2, *tokens[:-1]]])).logits[0]
        return logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]

    def answer(self, tokens: list[int], task: str, page: Image.Image):
        text = self.processor.batch_decode([tokens], skip_special_tokens=False)[0]
        return self.processor.post_process_generation(text, task=f"<{task}>", image_size=page.size)[f"<{task}>"]


LAYOUTS = {"transformers'": False, "Microsoft's": True}


@pytest.fixture(scope="module", params=parity({"florence2": LAYOUTS}))
def case(request, tmp_path_factory):
    case = Case(request.param.make, tmp_path_factory.mktemp("florence"))
    assert case.pipe.family.name == request.param.family
    return case


@pytest.mark.parametrize("options", [{"num_beams": 1}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_all_tasks_in_one_batch(case, options):
    """Prompts of different lengths, pictures of different shapes."""
    asked = [(task, case.pages[i % 3]) for i, task in enumerate(TASKS)]
    inputs = [{"images": [page], "task": task, "question": QUESTIONS.get(task)} for task, page in asked]
    found = case.pipe.generate(inputs, max_new_tokens=NEW, **options)
    written = [case.theirs(f"<{task}>{QUESTIONS.get(task, '')}", page, **options) for task, page in asked]
    assert [out.token_ids for out in found] == written
    assert len({tuple(tokens) for tokens in written}) > 5, "the tasks make no difference"
    for (task, page), out in zip(asked, found, strict=True):
        assert as_read(out.text) == case.answer(out.token_ids, task, page)
        if options["num_beams"] == 1:
            text = f"<{task}>{QUESTIONS.get(task, '')}"
            exact = case.log_probabilities(text, page, out.token_ids)
            torch.testing.assert_close(torch.tensor(out.logprobs), exact, atol=1e-4, rtol=0)


def as_read(text: str):
    return json.loads(text) if text.startswith("{") else text


PARTS = ("<loc_12>", "<loc_999>", "<loc_0>", "<loc_500>", "<loc_7>", "car", " a door", "it", "the image", "é", "\n",
         "<", ">", "</s>", "<s>", "<pad>", "<poly>", "</poly>", "<sep>", "<od>", "</od>", "<and>", "<obj>",
         "<ground>")  # fmt: skip
WEIGHTS = np.array([6, 6, 6, 6, 6, *(1,) * (len(PARTS) - 5)]) / (30 + len(PARTS) - 5)


def test_answers_to_texts_that_models_make_up():
    """Of many sizes, whose pixels are no multiples of bins."""
    theirs, random = florence_kit.processor(), np.random.default_rng(0)
    for _ in range(600):
        text = "".join(random.choice(PARTS, random.integers(1, 40), p=WEIGHTS))
        size = tuple(map(int, random.integers(1, 3000, 2)))
        for task in TASKS:
            expected = theirs.post_process_generation(text, task=f"<{task}>", image_size=size)[f"<{task}>"]
            assert read_answer(text, AnswerForm(task, size)) == expected, (task, size, text)


WRITTEN = {
    "OD": ("car<loc_54><loc_375><loc_906><loc_707>wheel<loc_708><loc_531><loc_906><loc_704>",
           {"bboxes": [[34, 180, 580, 339], [453, 255, 580, 338]], "labels": ["car", "wheel"]}),
    "REFERRING_EXPRESSION_SEGMENTATION": (
        "<loc_100><loc_200><loc_300><loc_200><loc_300><loc_400>",
        {"polygons": [[[64, 96, 192, 96, 192, 192]]], "labels": [""]}),
    "OCR_WITH_REGION": ("STOP<loc_1><loc_2><loc_10><loc_2><loc_10><loc_9><loc_1><loc_9>",
                        {"quad_boxes": [[0, 1, 6, 1, 6, 4, 0, 4]], "labels": ["STOP"]}),
    "OCR": ("STOP", "STOP"),
}  # fmt: skip


@pytest.mark.parametrize("task", WRITTEN)
def test_answers_are_in_pixels_of_the_picture(task):
    text, expected = WRITTEN[task]
    assert as_read(answer(text, AnswerForm(task, (640, 480)))) == expected


@pytest.fixture(scope="module")
def native(tmp_path_factory):
    return Case(remote=False, folder=tmp_path_factory.mktemp("native"))


def test_a_mark_in_the_prompt_is_the_task(native):
    """As the model's cards write it, and in a conversation."""
    page = native.pages[0]
    for task, question in (("OD", None), ("REGION_TO_OCR", REGION)):
        alone = native.pipe.generate(images=[page], task=task, question=question, max_new_tokens=NEW)
        prompt = f"<{task}>{question or ''}"
        turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt}]}]
        for asked in ({"prompt": prompt}, {"messages": turn}, {"task": task.lower(), "prompt": question}):
            found = native.pipe.generate(images=[page], max_new_tokens=NEW, **asked)
            assert (found.token_ids, found.text) == (alone.token_ids, alone.text)


@pytest.mark.parametrize("text", ["", "what is this", f"a car {REGION}"])
def test_prompts_of_no_task(text, native):
    """Are read as they are, and answered in text."""
    page = native.pages[1]
    found = native.pipe.generate(images=[page], prompt=text, max_new_tokens=NEW)
    assert found.token_ids == native.theirs(text, page)
    assert found.text == native.processor.decode(found.token_ids).replace("</s>", "")


def test_without_a_prompt_it_is_the_caption(native):
    page = native.pages[2]
    assert native.pipe.generate(page, max_new_tokens=NEW).token_ids == native.theirs("<CAPTION>", page)


MISTAKES = {
    "unknown": ({"task": "DETECT"}, "task is 'DETECT'; this model knows CAPTION, CAPTION_TO_PHRASE_GROUNDING, D"),
    "no text": ({"task": "CAPTION_TO_PHRASE_GROUNDING"}, "task 'CAPTION_TO_PHRASE_GROUNDING' answers a question; give"),
    "no region": ({"prompt": "<REGION_TO_CATEGORY>"}, "task 'REGION_TO_CATEGORY' answers a question; give one"),
    "a text too many": ({"task": "OD", "question": "a car"}, "task 'OD' takes no question; leave it out"),
    "two tasks": ({"task": "OD", "prompt": "<OCR>"}, "tasks OCR, OD were given together"),
    "two texts": ({"task": "REGION_TO_OCR", "question": "a", "prompt": "b"}, "a question was given beside a prompt"),
    "whose question": ({"question": "a"}, "a question is of a task; this model knows CAPTION"),
    "a raw prompt": ({"task": "OD", "raw_prompt": "a"}, "raw_prompt, task were given together"),
    "no task": ({"task": ["OD"]}, "task is"),
}


@pytest.mark.parametrize(("fields", "says"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(fields, says, native):
    with pytest.raises(InputError, match=says):
        native.pipe.generate(images=native.pages[:1], **fields)


def test_a_task_is_of_one_image(native):
    with pytest.raises(InputError, match="task 'OD' is of one image, got 2"):
        native.pipe.generate(images=native.pages[:2], task="OD")


SIZES = {"published": {}, "cropped": {"do_center_crop": True, "crop_size": {"height": 40, "width": 32}}}


@pytest.mark.parametrize("settings", SIZES.values(), ids=SIZES)
def test_pixels(settings, tmp_path):
    file = florence_kit.SETTINGS | {"image_processor_type": "CLIPImageProcessor"} | settings
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(file))
    ours = ImageProcessor.from_dir(tmp_path, family("florence2").image_processors)
    theirs = CLIPImageProcessor.from_pretrained(tmp_path)
    random = np.random.default_rng(0)
    for size in ((300, 200), (90, 400), (3, 700), (64, 48)):
        page = Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8))
        assert torch.equal(ours([page]), theirs([page], return_tensors="pt")["pixel_values"]), size


def test_pictures_are_read_at_their_own_size(native, tmp_path):
    """A JPEG is not decoded smaller than it is: its boxes are told in its pixels."""
    shades = np.add.outer(np.arange(1200), np.arange(1600)) % 256
    picture = Image.fromarray(np.stack([shades] * 3, -1).astype(np.uint8))
    picture.save(tmp_path / "large.jpg")
    [[image]] = read_pixels([(tmp_path / "large.jpg").read_bytes()], native.pipe.processor.image_source, MediaConfig())
    assert image.picture_size == (1600, 1200)


# of the text's part of a published configuration, with which Microsoft's code generates
PUBLISHED = {"num_beams": 3, "no_repeat_ngram_size": 3, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
             "early_stopping": True}  # fmt: skip


@pytest.mark.parametrize("name", kit.supported("florence2"))
def test_published_model(name, tmp_path):
    subject = Case.__new__(Case)
    subject.model, subject.processor = florence_kit.published(name, tmp_path / "hf")
    pipe = load(tmp_path / "hf", device="cpu", cache_dir=tmp_path / "cache")
    random = np.random.default_rng(3)
    pages = [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in ((120, 90), (64, 200))]
    pixels = [subject.processor.image_processor(page, return_tensors="pt")["pixel_values"] for page in pages]
    assert all(torch.equal(pipe.image_processor([page]), own) for page, own in zip(pages, pixels, strict=True))
    inputs = [{"images": [page], "task": "OD"} for page in pages]
    found = pipe.generate(inputs, max_new_tokens=NEW)
    written = [subject.theirs("<OD>", page, **PUBLISHED) for page in pages]
    assert [out.token_ids for out in found] == written and written[0] != written[1]
    assert as_read(found[0].text) == subject.answer(written[0], "OD", pages[0])
    plain = pipe.generate(inputs, max_new_tokens=NEW, num_beams=1, no_repeat_ngram_size=0)
    for page, out in zip(pages, plain, strict=True):
        exact = subject.log_probabilities("<OD>", page, out.token_ids)
        own = torch.tensor(out.logprobs)[1:-1]  # the first and the last one are forced
        torch.testing.assert_close(own, exact[1:-1], atol=1e-4, rtol=0)


REFUSED = {
    "frames": ({"image_feature_source": ["last_frame"]}, "image_feature_source is .'last_frame'., supported is"),
    "positions": ({"image_pos_embed": {"type": "sines"}}, "image_pos_embed.type is .'COSINE', 'sines'."),
    "stages": ({"num_heads": [1, 2, 3]}, "num_heads has 3 stages, embed_dim 2"),
    "heads": ({"num_heads": [5, 3]}, "embed_dim 16 is no multiple of num_heads 5"),
    "groups": ({"num_groups": [4, 5]}, "embed_dim 24 is no multiple of num_groups 5"),
    "grid": ({"patch_stride": [1, 1]}, r"images of \(40, 32\) become \(40, 32\) cells, not 1 to 7"),
    "window": ({"window_size": 10**9}, "window_size 1000000000: no images have those"),
    "padding": ({"patch_padding": [-1, 1]}, r"patch_padding is \(-1, 1\)"),
    "width": ({"projection_dim": 64}, "projection_dim is 64, the language model's width is 32"),
}


@pytest.mark.parametrize(("changes", "says"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_run_is_refused_by_name(changes, says):
    config = florence_kit.remote_config(florence_kit.florence2().config.to_dict())
    config["vision_config"] |= changes
    with pytest.raises(ConfigError, match=says):
        parse(config | {"image_processor_size": tiny.FLORENCE_SIZE})


@pytest.mark.parametrize("size", [tiny.FLORENCE_SIZE, list(tiny.FLORENCE_SIZE.values()), 40], ids=str)
def test_the_size_of_images_in_each_form_of_a_processors_settings(size):
    config = florence_kit.remote_config(florence_kit.florence2().config.to_dict())
    theirs = get_size_dict(size, default_to_square=True)
    assert parse(config | {"image_processor_size": size}).image_size == (theirs["height"], theirs["width"])
