"""mini-llava and mini-blip2, trained weights: Hugging Face's tokens through its own processor, and right answers."""

from __future__ import annotations

import json
import random

import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, Blip2ForConditionalGeneration, LlavaForConditionalGeneration

import vlm
from tests.checkout import ROOT
from training.scenes import scene as scenes
from training.scenes.loader import HELD_OUT
from training.scenes.questions import position
from vlm.build.locate import packaged_models

EXAMPLES = ROOT / "examples"
ASKED = [json.loads(line) for line in (EXAMPLES / "scenes.jsonl").read_text("utf-8").splitlines()]
CLASSES = {"mini-llava": LlavaForConditionalGeneration, "mini-blip2": Blip2ForConditionalGeneration}


@pytest.fixture(scope="module", params=CLASSES)
def loaded(request, tmp_path_factory):
    cache = tmp_path_factory.getbasetemp() / f"{request.param}-cache"
    return request.param, vlm.load(request.param, device="cpu", max_batch_size=8, cache_dir=cache)


def inputs_of(asked):
    return [{"images": [EXAMPLES / one["image"]], "prompt": one["question"]} for one in asked]


@torch.no_grad()
def theirs(name, asked) -> list[str]:
    folder = packaged_models()[name]
    processor = AutoProcessor.from_pretrained(folder)
    model = CLASSES[name].from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for one in asked:
        text = f"Question: {one['question']} Answer:"
        if name == "mini-llava":
            content = [{"type": "image"}, {"type": "text", "text": one["question"]}]
            text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        batch = processor(images=Image.open(EXAMPLES / one["image"]).convert("RGB"), text=text, return_tensors="pt")
        batch = {key: torch.as_tensor(value) for key, value in batch.items()}
        batch = {key: x[None] if key == "input_ids" and x.ndim == 1 else x for key, x in batch.items()}
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        out = model.generate(**batch, do_sample=False)
        start = batch["input_ids"].shape[1] if name == "mini-llava" else 1
        found.append(out[0, start:].tolist())
    return found


def test_tokens_equal_hugging_faces(loaded):
    name, pipe = loaded
    want = theirs(name, ASKED)
    found = pipe.generate(inputs_of(ASKED))
    for out, tokens in zip(found, want, strict=True):
        assert out.token_ids == tokens[: len(out.token_ids)] and out.finish_reason == "eos"
    right = sum(out.text == one["answer"] for out, one in zip(found, ASKED, strict=True))
    assert right >= len(ASKED) - 1, [(one["question"], out.text) for out, one in zip(found, ASKED, strict=True)]


def test_beams_and_company_change_nothing(loaded):
    _, pipe = loaded
    alone = [pipe.generate(one).token_ids for one in inputs_of(ASKED[:3])]
    words = {"prompt": "How many objects are there?"}
    mixed = pipe.generate([words, *inputs_of(ASKED[:3]), words])
    assert [out.token_ids for out in mixed[1:4]] == alone
    assert mixed[0].token_ids == mixed[4].token_ids
    sure = pipe.generate(inputs_of(ASKED[:3]), num_beams=3)
    assert [out.text for out in sure] == [out.text for out in mixed[1:4]]


def test_a_conversation_about_one_picture():
    pipe = vlm.load("mini-llava", device="cpu")
    one = ASKED[-1]
    image = {"type": "image", "image": EXAMPLES / one["image"]}
    messages = [{"role": "user", "content": [image, {"type": "text", "text": "How many objects are there?"}]}]
    first, asked = pipe.generate(messages=messages), pipe.request({"messages": messages}).decoder_prompt_token_ids
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": one["question"]}]
    assert pipe.generate(messages=messages).text == one["answer"]
    # the text fits into the template, so that what was said need not be computed again
    goes_on = pipe.request({"messages": messages}).decoder_prompt_token_ids
    assert list(goes_on[: len(asked) + len(first.token_ids)]) == [*asked, *first.token_ids]
    assert pipe.llm.encoders.encoder_cache.misses == 1, "the picture is encoded once"


@pytest.mark.parametrize("which", [0, 1])
def test_positions_are_compared_in_scenes_it_has_not_seen(loaded, which):
    """Asked with yes or no, and for the name of one of two: a guess would be right in half of them."""
    asked = []
    for seed in range(HELD_OUT, HELD_OUT + 60):
        scene = scenes.make(seed)
        if found := position(scene, random.Random(seed), which=which):
            asked.append((scenes.picture(scene, scale=2), *found))
    out = loaded[1].generate([{"images": [image], "prompt": question} for image, question, _ in asked])
    right = sum(one.text == answer for one, (*_, answer) in zip(out, asked, strict=True))
    assert len(asked) > 25 and right >= len(asked) - 1
