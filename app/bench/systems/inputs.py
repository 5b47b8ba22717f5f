"""Random texts and prompts, the same ones for both systems."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vlm.registry.role_configs import RoleConfigs
from vlm_app.bench.config import PromptBenchConfig, TextBenchConfig, Workload
from vlm_app.bench.pages.pictures import soft_colours
from vlm_app.bench.systems.session import Session

FIRST_ORDINARY_ID = 10  # ids below are special ones in the families here,
SPECIAL_AT_END = 128  # … and those at the end of a large vocabulary: sentinels, languages, padding, images
LARGE = 1024
SEEDS = 7919  # between the seeds of two rows
# what is asked for beside them: answers go on to their length, as random weights end and repeat themselves at random
FULL_LENGTH = {"ignore_eos": True, "loop_detection": False}


def random_ids(vocab_size: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draws ids of ordinary tokens."""
    past = vocab_size - (SPECIAL_AT_END if vocab_size >= LARGE else vocab_size // 16)
    return torch.randint(min(FIRST_ORDINARY_ID, past - 1), past, shape, generator=generator)


def random_texts(session: Session[TextBenchConfig], row: Workload) -> list[list[int]]:
    """Returns the token ids of each text of a batch, the same for both systems."""
    generator, (most, _) = torch.Generator().manual_seed(session.config.seed), row.lengths
    ids = random_ids(session.configs["decoder"].vocab_size, (row.batch_size, most), generator).tolist()
    if row.min_input_len is None:
        return ids
    lengths = torch.randint(row.min_input_len, most + 1, (row.batch_size,), generator=generator).tolist()
    return [text[:length] for text, length in zip(ids, lengths, strict=True)]


@dataclass(frozen=True)
class Prompts:
    """A batch, its images before its texts."""

    texts: Tensor  # [batch, tokens in]
    pixel_values: Tensor | None  # [batch, images, C, H, W]
    pictures: tuple[tuple[Image.Image, ...], ...] = ()  # in their place, [batch][images]: they are to be processed
    image_rows: int = 0  # of all images of a prompt

    def __len__(self) -> int:
        return len(self.texts)

    def first(self, count: int | None) -> Prompts:
        """Returns so many of the batch; None: all."""
        pixels = None if self.pixel_values is None else self.pixel_values[:count]
        return Prompts(self.texts[:count], pixels, self.pictures[:count], self.image_rows)


def random_prompts(session: Session[PromptBenchConfig], row: Workload, number: int) -> Callable[[], Prompts]:
    """Draws one batch of a row after the other, the same ones for both systems, other ones for another number."""
    configs, generator = session.configs, torch.Generator().manual_seed(session.config.seed + SEEDS * number)
    shape = (row.batch_size, session.config.num_images(configs))

    def draw() -> Prompts:
        texts = random_ids(vocab_size(configs), (row.batch_size, row.lengths[0]), generator)
        if not shape[1]:
            return Prompts(texts, None)
        rows = session.config.image_rows(configs)
        if (size := session.config.image_size) is not None:
            return Prompts(texts, None, _random_pictures(shape, size, generator), rows)
        size = (*shape, configs["visual"].num_channels, *session.config.size_of_pixels(configs))
        return Prompts(texts, torch.randn(size, generator=generator), image_rows=rows)

    return draw


def _random_pictures(
    shape: tuple[int, int], size: tuple[int, int], generator: torch.Generator
) -> tuple[tuple[Image.Image, ...], ...]:
    """Draws RGB pictures of (width, height), [batch][images]."""
    numbers = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    return tuple(tuple(soft_colours(numbers, size) for _ in range(shape[1])) for _ in range(shape[0]))


def vocab_size(configs: RoleConfigs) -> int:
    """Returns the vocabulary size of the network that reads the prompt."""
    return configs.reader.vocab_size


def as_inputs(prompts: Prompts, configs: RoleConfigs) -> list[dict[str, Any]]:
    """Returns prompts as the pipeline takes them: the images' rows have the ids from the vocabulary's size on."""
    key = "encoder_input_ids" if configs.encoder else "decoder_prompt_token_ids"
    first = vocab_size(configs)
    rows = list(range(first, first + prompts.image_rows))
    texts = [{key: rows + ids} for ids in prompts.texts.tolist()]
    if prompts.pictures:
        return [text | {"images": list(images)} for text, images in zip(texts, prompts.pictures, strict=True)]
    if prompts.pixel_values is None:
        return texts
    return [text | {"pixel_values": pixels} for text, pixels in zip(texts, prompts.pixel_values, strict=True)]
