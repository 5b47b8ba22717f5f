"""Pix2Struct in small, with a processor as published, a tokenizer of few words and the font that Pillow brings."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
from PIL import Image, ImageFont
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Pix2StructImageProcessor, Pix2StructProcessor, PreTrainedTokenizerFast

from tests.kits.models import tiny

SPECIAL = ("<pad>", "</s>", "<unk>")
WORDS = (
    "▁what", "▁is", "▁the", "▁date", "▁a", "▁picture", "▁of", "▁chart", "▁", *(f"▁w{i}" for i in range(48)),
)  # fmt: skip
PATCHES, SIDE = 60, 4
FONT = "Aileron.ttf"
SIZES = ((70, 40), (30, 90), (64, 48), (400, 9))  # (height, width)


def processor(*, is_vqa: bool) -> Pix2StructProcessor:
    """Returns Hugging Face's, for models of up to 64 patches; its own class makes 2,048 whatever the settings say."""
    vocabulary = [(token, 0.0) for token in SPECIAL] + [(word, -float(i)) for i, word in enumerate(WORDS, 1)]
    fast = Tokenizer(models.Unigram(vocabulary, unk_id=2))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    fast.add_special_tokens(list(SPECIAL))
    names = dict(zip(("pad_token", "eos_token", "unk_token"), SPECIAL, strict=True))
    images = Pix2StructImageProcessor(
        is_vqa=is_vqa, max_patches=PATCHES, patch_size={"height": SIDE, "width": SIDE}
    )  # fmt: skip
    return Pix2StructProcessor(images, PreTrainedTokenizerFast(tokenizer_object=fast, **names))


def save(folder: Path, *, is_vqa: bool, seed: int = 1):
    """Writes the folder that people have, with a font in it -> Hugging Face's model."""
    model = tiny.pix2struct(seed=seed)
    model.save_pretrained(folder)
    processor(is_vqa=is_vqa).save_pretrained(folder)
    (folder / FONT).write_bytes(font_bytes())
    return model


@functools.cache
def font_bytes() -> bytes:
    """Returns a font that is wherever Pillow is."""
    return ImageFont.load_default(36).font_bytes


def pictures() -> list[Image.Image]:
    """Upright, wide, nearly square, and a sliver."""
    random = np.random.default_rng(2)
    return [Image.fromarray(random.integers(0, 256, (*size, 3), np.uint8)) for size in SIZES]
