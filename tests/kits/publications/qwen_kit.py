"""Qwen2.5-VL in small, with the published image processor, chat template and generation settings, and a tokenizer of
few words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

from tests.kits.models import tiny
from tests.kits.models.small_folder_kit import copy_generation_config, tokenizer_of_words
from tests.kits.publications.published_kit import FOLDER

PUBLISHED = FOLDER / "Qwen__Qwen2.5-VL-7B-Instruct"
MARK, VIDEO, START, END = "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", START, END, VIDEO, MARK]
WORDS = ["[UNK]", "\n", "system", "user", "assistant", "read", "You are a helpful assistant.",
         *(f"w{i} " for i in range(46))]  # fmt: skip
ENDS = [len(WORDS) + 2, len(WORDS)]


def save(folder: Path, *, second: bool = True):
    """Writes the folder that people have -> Hugging Face's model, of Qwen2-VL's classes or the second ones."""
    ids = {token: len(WORDS) + i for i, token in enumerate(SPECIAL)}
    names = {"image_token_id": ids[MARK], "video_token_id": ids[VIDEO], "vision_start_token_id": ids[START]}
    # the rows of pages fit
    text = {"max_position_embeddings": 16384, "bos_token_id": ENDS[1], "eos_token_id": ENDS[0]}
    tower = {"depth": 2, "patch_size": 14} | ({"window_size": 112, "fullatt_block_indexes": [1]} if second else {})
    model = tiny.qwen_vl(second=second, tower=tower, text=text, **names, vision_end_token_id=ids[END])
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    for file in ("preprocessor_config.json", "chat_template.json"):
        shutil.copy(PUBLISHED / file, folder)
    copy_generation_config(PUBLISHED, folder, eos_token_id=ENDS, bos_token_id=ENDS[1], pad_token_id=ENDS[1])
    return model


def _tokenizer() -> PreTrainedTokenizerFast:
    fast = tokenizer_of_words(WORDS, SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def template() -> str:
    return json.loads((PUBLISHED / "chat_template.json").read_text())["chat_template"]


def processor() -> Qwen2_5_VLProcessor:
    """Returns Hugging Face's, of the published settings."""
    images = Qwen2VLImageProcessor.from_pretrained(PUBLISHED)
    return Qwen2_5_VLProcessor(images, _tokenizer(), Qwen2VLVideoProcessor(), chat_template=template())


def pictures() -> list[Image.Image]:
    """A page, an upright picture and a strip, and one below the least pixels."""
    random = np.random.default_rng(0)
    sizes = ((1100, 850), (310, 200), (40, 600), (30, 41))
    return [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]
