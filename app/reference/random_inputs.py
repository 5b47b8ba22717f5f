"""Inputs that need no files: random ids and pixels of a family's kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlm.errors import InputError, counted

if TYPE_CHECKING:
    from vlm.api.pipeline import Pipeline
    from vlm.config import VisionConfig

LENGTHS = (17, 3, 1, 40, 9)  # of random prompts and texts; longer ones are cut to what the engine takes
FIRST_ID = 3  # below are special tokens, in most vocabularies


class RandomInputs:
    """What a family takes, drawn from a seed. `placeholder`: an id that stands for an image, and must not be drawn"""

    def __init__(self, pipeline: Pipeline, placeholder: int | None, new_tokens: int, seed: int):
        able = pipeline.capabilities
        self.takes_prompt, self.key, self.vocab = able.takes_prompt, able.id_field, able.vocab_size
        self.visual, self.placeholder = pipeline.processor.vision, placeholder
        self.start = [pipeline.config.decoder_start_token_id]
        self.room = able.max_encoder_input_len if able.has_text_encoder else able.max_seq_len - new_tokens
        self.generator = torch.Generator().manual_seed(seed)
        if min(self.room, able.max_seq_len - new_tokens) < 1:
            raise InputError(f"{new_tokens} new tokens leave no room for a prompt in this engine; ask for fewer.")

    def all(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns pairs of what it is and the input"""
        if self.visual is not None and not self.takes_prompt:
            visual, begins = self.visual, {"decoder_prompt_token_ids": self.start}  # of no task: it may ask
            return [(f"image {i}", {"pixel_values": self._pixels(visual, 1)[0], **begins}) for i in range(1, 4)]
        texts = [self._ids(min(length, self.room)) for length in LENGTHS]
        inputs = [(counted(len(ids), "token"), {self.key: ids}) for ids in texts]
        return inputs + (self._with_images(self.visual, texts[0]) if self.visual is not None else [])

    def _with_images(self, visual: VisionConfig, ids: list[int]) -> list[tuple[str, dict[str, Any]]]:
        """Returns a text after one image and around a second, as far as they fit. Words stand between images: some of
        transformers' classes take two side by side for one."""
        inputs, rows = [], visual.rows_of(*visual.usual_size)
        first, second = (list(range(self.vocab + i * rows, self.vocab + (i + 1) * rows)) for i in range(2))
        for images, prompt in ((1, [*first, *ids]), (2, [*first, *ids[:2], *second, *ids[2:]])):
            if len(prompt) <= self.room:
                name = f"{counted(images, 'image')}, {counted(len(ids), 'token')}"
                inputs.append((name, {self.key: prompt, "pixel_values": self._pixels(visual, images)}))
        return inputs

    def _pixels(self, visual: VisionConfig, images: int) -> Tensor:
        return torch.randn(images, visual.num_channels, *visual.usual_size, generator=self.generator)

    def _ids(self, length: int) -> list[int]:
        low = min(FIRST_ID, self.vocab - 1)
        ids = torch.randint(low, self.vocab, (length,), generator=self.generator).tolist()
        return [low if i == self.placeholder else i for i in ids]
