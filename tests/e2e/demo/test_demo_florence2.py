"""The demo asks Florence-2 about the last image, shows the places that an answer names on it, and has fields for what
models are told beside an image: tasks and questions."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from PIL import Image

import vlm
from tests.kits.models import tiny
from tests.kits.publications import florence_kit
from tests.kits.publications.donut_kit import FORMS, write_processor
from vlm.api.async_pipeline import AsyncPipeline

gr = pytest.importorskip("gradio", reason="the demo needs gradio: pip install 'vlm-runtime[demo]'")


async def last(states):
    found = None
    async for state in states:
        found = state
    return found


def test_an_answer_is_drawn_on_the_image_it_is_about(tmp_path):
    from vlm_app.core.overlay import draw
    from vlm_app.demo.ask import AskTab

    florence_kit.write(florence_kit.florence2(), tmp_path / "florence", remote=False)
    pipe = vlm.load(tmp_path / "florence", device="cpu", cache_dir=tmp_path / "cache")
    random, files = np.random.default_rng(1), [tmp_path / f"{i}.png" for i in range(2)]
    for file in files:
        Image.fromarray(random.integers(0, 256, (60, 90, 3), np.uint8)).save(file)

    asked = [(files[0], "REGION_PROPOSAL"), (files[1], "OCR_WITH_REGION"), (files[1], "OCR")]
    texts = [pipe.generate(images=[str(file)], task=task, max_new_tokens=24).text for file, task in asked]

    async def conversation():
        """Asks about two images, one after the other, and the second once more."""
        model = AsyncPipeline(pipe)
        model.start()
        tab, turns, shown = AskTab({"florence": model}), (), []
        with gr.Blocks():
            tab.build()
        asked = (("<REGION_PROPOSAL>", files[:1], ""), ("", files[1:], "OCR_WITH_REGION"), ("<OCR>", [], ""))
        for text, images, task in asked:  # a task is marked in the text, or chosen
            question = {"text": text, "files": [str(file) for file in images]}
            chat, _, turns, _ = await last(tab.answer(question, turns, "florence", task, max_new_tokens=24))
            shown.append(chat[-1]["content"])
        await model.close()
        return shown

    *drawn, plain = asyncio.run(conversation())
    for content, file, text in zip(drawn, files, texts[:2], strict=True):
        expected = Image.open(file).convert("RGB")
        draw(expected, json.loads(text))
        assert content[0] == text and Image.open(content[1]["path"]).tobytes() == expected.tobytes()
    assert plain == texts[2:]


def test_a_question_about_a_page(tmp_path):
    """Fields are shown for models that take them; what they say to another model stays out."""
    from vlm_app.demo import told
    from vlm_app.demo.read import ReadTab

    processor = write_processor(tmp_path / "donut", FORMS["docvqa"])
    tiny.nougat(seed=4, vocab=len(processor.tokenizer)).save_pretrained(tmp_path / "donut")
    pipes = {
        "nougat": vlm.load("mini-nougat", device="cpu"),
        "donut": vlm.load(tmp_path / "donut", device="cpu", cache_dir=tmp_path / "cache"),
    }
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (60, 90, 3), np.uint8)).save(tmp_path / "page.png")
    page = str(tmp_path / "page.png")
    question = "what is the date"
    expected = pipes["donut"].generate({"images": [page], "question": question}, max_new_tokens=6).text

    async def reading():
        models = {name: AsyncPipeline(pipe) for name, pipe in pipes.items()}
        models["donut"].start()
        tab = ReadTab(models)
        with gr.Blocks():
            tab.build()
        text, _ = await last(tab.read(page, 1, "donut", "", question, max_new_tokens=6))
        await models["donut"].close()
        return text, [told.of_model(models, name, "task", "question") for name in models]

    text, (nougat, donut) = asyncio.run(reading())
    assert text == expected
    assert [each["visible"] for each in nougat] == [False, False]
    assert [each["visible"] for each in donut] == [True, True] and ("docvqa", "docvqa") in donut[0]["choices"]
    assert told.words(pipes["nougat"].capabilities, {"task": "docvqa", "question": question}) == {}
