"""LightOnOCR in small, with the published processor, chat template and generation settings, and a tokenizer of few
words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from transformers import LightOnOcrProcessor, PixtralImageProcessor, PreTrainedTokenizerFast

from tests.kits.models import tiny
from tests.kits.models.small_folder_kit import copy_generation_config, tokenizer_of_words
from tests.kits.publications.published_kit import FOLDER

PUBLISHED = FOLDER / "lightonai__LightOnOCR-2-1B__Moobbot"
MARK, BREAK, END = "<|image_pad|>", "<|vision_pad|>", "<|vision_end|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", BREAK, END, MARK]
WORDS = ["[UNK]", "\n", "system", "user", "assistant", "read", "this", "page",
         *(f"w{i} " for i in range(46))]  # fmt: skip
ENDS = [len(WORDS) + 2, len(WORDS)]


def save(folder: Path):
    """Writes the folder that people have -> Hugging Face's model."""
    tower = {"image_size": 1540, "patch_size": 14, "num_hidden_layers": 1}
    mark = len(WORDS) + SPECIAL.index(MARK)
    # the rows of pages fit
    model = tiny.lighton_ocr(tower=tower, text={"max_position_embeddings": 16384}, image_token_id=mark)
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    for file in ("processor_config.json", "chat_template.jinja"):
        shutil.copy(PUBLISHED / file, folder)
    copy_generation_config(PUBLISHED, folder, eos_token_id=ENDS, bos_token_id=ENDS[1], pad_token_id=ENDS[1])
    return model


def _tokenizer() -> PreTrainedTokenizerFast:
    fast = tokenizer_of_words(WORDS, SPECIAL)
    names = {"image_token": MARK, "image_break_token": BREAK, "image_end_token": END}
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=fast, extra_special_tokens=names, **ends)


def processor() -> LightOnOcrProcessor:
    """Returns Hugging Face's, as the publication's card makes it."""
    settings = json.loads((PUBLISHED / "processor_config.json").read_text())["image_processor"]
    images = PixtralImageProcessor(**{key: value for key, value in settings.items() if value is not None})
    return LightOnOcrProcessor(images, _tokenizer(), chat_template=(PUBLISHED / "chat_template.jinja").read_text())


def pictures() -> list[Image.Image]:
    """Pages beyond and below the model's size, one with a patch left over at each side."""
    random = np.random.default_rng(0)
    sizes = ((1700, 1203), (200, 310), (99, 71))
    return [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in sizes]
