"""The family against Hugging Face's own classes, FP32 on the CPU: `pytest` in the package's folder."""

from __future__ import annotations

import itertools
import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DeepseekVLConfig,
    DeepseekVLForConditionalGeneration,
    DeepseekVLProcessor,
    LlamaConfig,
    PreTrainedTokenizerFast,
    SiglipVisionConfig,
)
from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import DeepseekVLImageProcessorPil
from typer.testing import CliRunner
from vlm_deepseek_vl.family import END, SYSTEM
from vlm_deepseek_vl.images import DEEPSEEK

import vlm
from vlm.processing.media.image_processor import ImageProcessor
from vlm_app.cli.verbs import command_line

PICTURE = "<image_placeholder>"
WORDS = [END, "<s>", PICTURE, "[UNK]", *dict.fromkeys(f"{SYSTEM} User: Assistant: what is this ? red blue".split())]
SIDE, ROWS = 16, 16  # pixels, and rows of a picture
# as the published folders have it: contents in parts
TEMPLATE = (
    SYSTEM + "\n\n{% for m in messages %}{{ m['role'].capitalize() + ': ' }}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}" + PICTURE + "{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{{ '\n\n' if m['role'] == 'user' else '" + END + "' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def reference(tied: bool = False) -> DeepseekVLForConditionalGeneration:
    """Returns a tiny model whose weights are so far apart that tokens differ."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    tower = SiglipVisionConfig(**sizes | {"hidden_size": 24}, image_size=SIDE, patch_size=4)
    ids = {"bos_token_id": 1, "eos_token_id": 0, "pad_token_id": 0}
    text = LlamaConfig(**sizes, vocab_size=len(WORDS), num_key_value_heads=2, tie_word_embeddings=tied, **ids)
    config = DeepseekVLConfig(
        vision_config=tower, text_config=text, image_token_id=WORDS.index(PICTURE), tie_word_embeddings=tied
    )
    model = DeepseekVLForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data += torch.randn(parameter.shape) * 0.25
    return model


def processor() -> DeepseekVLProcessor:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(WORDS[:3])
    special = {"bos_token": "<s>", "eos_token": END, "pad_token": END, "extra_special_tokens": {"image_token": PICTURE}}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)
    images = DeepseekVLImageProcessorPil(size={"height": SIDE, "width": SIDE}, min_size=3)
    return DeepseekVLProcessor(images, fast, chat_template=TEMPLATE, num_image_tokens=ROWS)


def pictures(*sizes: tuple[int, int]) -> list[Image.Image]:
    """Pictures of (width, height)."""
    drawn = np.random.default_rng(0)
    return [Image.fromarray(drawn.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in sizes]


@torch.no_grad()
def theirs(model, text: str, images: list[Image.Image], **options) -> list[int]:
    given = processor()(text=text, images=images or None, return_tensors="pt")
    out = model.generate(**given, do_sample=False, pad_token_id=0, **options)[0]
    found = out[given["input_ids"].shape[1] :].tolist()
    return found[: found.index(0) + 1] if 0 in found else found


def said(role: str, *parts: str) -> dict:
    """Returns a message; of the parts PICTURE is an image."""
    content = [{"type": "image"} if part == PICTURE else {"type": "text", "text": part} for part in parts]
    return {"role": role, "content": content}


CONVERSATIONS = {
    "a question": [said("user", PICTURE, "what is this ?")],
    "two pictures and an answer": [
        said("user", PICTURE, "what is this ?"), said("assistant", "red"), said("user", "is", PICTURE, "blue ?"),
    ],
    "words alone": [said("user", "is red blue ?")],
}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
def test_the_same_tokens_and_log_probabilities(tied, tmp_path):
    model, given = reference(tied), processor()
    model.save_pretrained(tmp_path / "model")
    given.save_pretrained(tmp_path / "model")
    pipe = vlm.load(tmp_path / "model", device="cpu", cache_dir=tmp_path / "cache")
    assert pipe.family.name == "deepseek-vl"
    inputs, texts, images = [], [], pictures((20, 12), (9, 30))
    for messages in CONVERSATIONS.values():
        count = str(messages).count("'image'")
        inputs.append({"messages": messages, "images": images[:count]})
        texts.append((given.apply_chat_template(messages, add_generation_prompt=True), images[:count]))
    for options in ({}, {"num_beams": 3}):
        found = pipe.generate(inputs, max_new_tokens=12, **options)
        assert [out.token_ids for out in found] == [
            theirs(model, *each, max_new_tokens=12, **options) for each in texts
        ]
        assert len({tuple(out.token_ids) for out in found}) == len(inputs), "what is asked makes no difference"
    for each, out in zip(texts, pipe.generate(inputs, max_new_tokens=12), strict=True):
        exact = log_probabilities(model, *each, out.token_ids)
        torch.testing.assert_close(torch.tensor(out.logprobs)[: len(exact)], exact, atol=1e-4, rtol=0)


@torch.no_grad()
def log_probabilities(model, text: str, images: list[Image.Image], tokens: list[int]) -> torch.Tensor:
    """Returns those of an output, up to where it says PICTURE: a picture would be looked for."""
    shown = torch.tensor([*itertools.takewhile(lambda token: token != WORDS.index(PICTURE), tokens)], dtype=torch.long)
    given = processor()(text=text, images=images or None, return_tensors="pt")
    given["input_ids"] = torch.cat([given["input_ids"], shown[None]], 1)
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    logits = model(**given).logits[0, -len(shown) - 1 : -1]
    return logits.log_softmax(-1).gather(1, shown[:, None])[:, 0]


def test_its_own_processor_makes_the_same_pixels(tmp_path):
    """Of pictures of all shapes, slivers too, with the folder's settings and without any."""
    assert pickle.loads(pickle.dumps(DEEPSEEK)) == DEEPSEEK  # as the processes that read images are told of it
    given = processor()
    given.save_pretrained(tmp_path)
    shapes = pictures((20, 12), (9, 30), (16, 16), (400, 2), (5, 5))
    ours, usual = ImageProcessor.from_dir(tmp_path, (DEEPSEEK,)), ImageProcessor.default(DEEPSEEK, (384, 384))
    for kind, want in ((ours, given.image_processor), (usual, DeepseekVLImageProcessorPil())):
        for picture in shapes:
            exact = torch.as_tensor(np.array(want([picture])["pixel_values"]))
            torch.testing.assert_close(kind([picture]), exact, atol=1e-5, rtol=0)


def test_its_own_chat_format_is_that_of_the_folder(tmp_path):
    """Of folders without a template, and on the command line."""
    model, given, [picture] = reference(), processor(), pictures((20, 12))
    model.save_pretrained(folder := tmp_path / "model")
    given.save_pretrained(folder)
    (folder / "chat_template.jinja").unlink()
    picture.save(tmp_path / "a.png")
    text = f"{SYSTEM}\n\nUser: {PICTURE}what is this ?\n\nAssistant:"
    want = theirs(model, text, [picture], max_new_tokens=9)
    pipe = vlm.load(folder, device="cpu", cache_dir=tmp_path / "cache")
    for question in ({"prompt": "what is this ?"}, {"raw_prompt": text}):
        assert pipe.generate(question | {"images": [picture]}, max_new_tokens=9).token_ids == want
    flags = ["--image", str(tmp_path / "a.png"), "--prompt", "what is this ?", "--max-new-tokens", "9", "--json"]
    shown = CliRunner(env={"VLM_CACHE": str(tmp_path / "cache")}).invoke(
        command_line(), ["run", "--model", str(folder), *flags]
    )
    assert shown.exit_code == 0, shown.stderr
    assert json.loads(shown.stdout)["token_ids"] == want
