"""Granite-Docling in small, with the published image processor, chat template and generation settings, and a tokenizer
of few words."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import Idefics3ImageProcessor, Idefics3Processor, PreTrainedTokenizerFast

from tests.kits.models import tiny
from tests.kits.models.small_folder_kit import copy_generation_config, tokenizer_of_words
from tests.kits.publications.published_kit import FOLDER

PUBLISHED = FOLDER / "ibm-granite__granite-docling-258M"
MARK, AROUND, WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"
START, ROLE, END = "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"
TILES = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
TAGS = ["<doctag>", "</doctag>", "<text>", "</text>", "<title>", "</title>", "<fcel>", "<nl>", "<otsl>", "</otsl>"]
SPECIAL = [END, START, ROLE, MARK, AROUND, WHOLE, "<end_of_utterance>", *TILES, *TAGS]
PAGE = "Convert this page to docling."
WORDS = ["[UNK]", "\n", "system", "user", "assistant", "read", PAGE, *(f"w{i} " for i in range(30))]


def token(text: str) -> int:
    return [*WORDS, *SPECIAL].index(text)


# what follows an image and its prompt, where a page is written: a title, a text and a table of one row
SCRIPT = [ROLE, "<doctag>", "<title>", "w1 ", "</title>", "<text>", "w2 ", "</text>", "<otsl>", "<fcel>", "w3 ", "<nl>",
          "</otsl>", "</doctag>", END]  # fmt: skip
MARKDOWN = "# w1\n\nw2\n\n| w3 |\n| --- |"


# the same, which never comes to an end
LOOP = [*SCRIPT[: SCRIPT.index("w2 ") + 1], "w3 ", "w4 ", "w2 "]


def save(folder: Path, seed: int = 0, *, script: list[str] | None = None, **text):
    """Writes the folder that people have -> Hugging Face's model; with a `script` its tokens follow one another."""
    # tiles and rows of them as published: pages fit
    tower = {"num_hidden_layers": 1, "image_size": 512, "patch_size": 16}
    words = {"vocab_size": len(WORDS) + len(SPECIAL), "max_position_embeddings": 8192, "bos_token_id": token(START),
             "eos_token_id": token(END), "pad_token_id": token(END)}  # fmt: skip
    names = {"image_token_id": token(MARK), "scale_factor": 4, "tie_word_embeddings": script is None}
    model = tiny.idefics3(seed, tower=tower, text=words | text, **names)
    if script is not None:
        _follow(model, list(map(token, script)))
    model.save_pretrained(folder)
    _tokenizer().save_pretrained(folder)
    for file in ("preprocessor_config.json", "processor_config.json", "chat_template.jinja"):
        shutil.copy(PUBLISHED / file, folder)
    ids = {"eos_token_id": token(END), "bos_token_id": token(START), "pad_token_id": token(END)}
    copy_generation_config(PUBLISHED, folder, **ids)
    return model


@torch.no_grad()
def _follow(model, tokens: list[int]) -> None:
    """Changes weights so that layers add nothing, and the head finds each token's successor by its embedding."""
    embeddings = torch.nn.functional.normalize(model.get_input_embeddings().weight)
    model.get_input_embeddings().weight.copy_(embeddings)
    model.get_output_embeddings().weight.zero_()
    for last, following in itertools.pairwise(tokens):
        model.get_output_embeddings().weight[following] += embeddings[last]
    text = model.model.text_model
    text.norm.weight.fill_(1.0)
    for layer in text.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


def _tokenizer() -> PreTrainedTokenizerFast:
    fast = tokenizer_of_words(WORDS, SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=fast, bos_token=START, eos_token=END, pad_token=END)


def template() -> str:
    return (PUBLISHED / "chat_template.jinja").read_text()


def processor() -> Idefics3Processor:
    """Returns Hugging Face's, of the published settings."""
    images = Idefics3ImageProcessor.from_pretrained(PUBLISHED)
    length = json.loads((PUBLISHED / "processor_config.json").read_text())["image_seq_len"]
    return Idefics3Processor(images, _tokenizer(), image_seq_len=length, chat_template=template())


def pictures() -> list[Image.Image]:
    """An upright page, a wide strip, a slender one, and one below a tile; of wide areas, as pages are."""
    random = np.random.default_rng(0)
    sizes = ((880, 660), (150, 600), (700, 9), (30, 30))
    small = [random.integers(0, 256, (-(-height // 8), -(-width // 8), 3), np.uint8) for height, width in sizes]
    scaled = [np.kron(each, np.ones((8, 8, 1), np.uint8)) for each in small]
    return [Image.fromarray(each[:height, :width]) for each, (height, width) in zip(scaled, sizes, strict=True)]
