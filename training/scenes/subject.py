"""What the two models have in common: pictures and rows of tokens as tensors, and how a folder is read and written."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from training.scenes.loader import Examples
from training.scenes.scene import SIZE
from training.scenes.tokens import END, PAD

PATCH = 8
MEAN, STD = 0.5, 0.25  # of every channel
SHADES = {"image_mean": [MEAN] * 3, "image_std": [STD] * 3}
TOWER = {
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_attention_heads": 6,
    "image_size": SIZE,
    "patch_size": PATCH,
}
NOISE = 6.0  # shades, in training alone
MAX_NEW_TOKENS = 16
WIDTH = 8  # rows of tokens are padded to a multiple of it, so that few shapes come up in training
Batch = dict[str, Tensor]  # what `loss` is given


class Subject(ABC):
    """A model that learns, as Hugging Face's class, and its tokenizer."""

    name: str
    captured: bool  # may its steps be captured as CUDA graphs?
    model: torch.nn.Module

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.tokenizer = tokenizer
        self._known: dict[str, list[int]] = {}

    @abstractmethod
    def batch(self, examples: Examples) -> Batch:
        """pixels [n, H, W, 3] uint8, ids and labels [rows, width]"""

    @abstractmethod
    def loss(self, pixels: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of a batch: its mean over the tokens of answers."""

    @abstractmethod
    def answers(self, pixels: Tensor, questions: list[str], device: torch.device) -> list[str]:
        """pixels [n, H, W, 3] uint8, a question each"""

    @abstractmethod
    def processor(self) -> Any:
        """Hugging Face's, of pictures and texts."""

    def ids(self, text: str) -> list[int]:
        """Kept, as most texts come again and again: tokenizing would take longer than the step."""
        if text not in self._known:
            self._known[text] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return self._known[text]

    def load(self, folder: Path) -> None:
        """A folder's weights, and its tokenizer: one that is built anew may number other pieces."""
        self.model = type(self.model).from_pretrained(folder, dtype=torch.float32)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)

    def export(self, folder: Path) -> None:
        """A Hugging Face folder in float16."""
        folder.mkdir(parents=True, exist_ok=True)
        model = copy.deepcopy(self.model).cpu().half()
        settings = model.generation_config
        settings.eos_token_id, settings.pad_token_id, settings.max_new_tokens = END, PAD, MAX_NEW_TOKENS
        self.set_begin(settings)
        model.save_pretrained(folder)
        self.processor().save_pretrained(folder)

    @abstractmethod
    def set_begin(self, settings: Any) -> None:
        """Which token a generation begins with."""


def normalized(pixels: Tensor, noisy: bool = False) -> Tensor:
    """[n, H, W, 3] uint8 -> [n, 3, H, W], as the image processor makes it; noisy: up to NOISE shades are added."""
    shades = pixels.permute(0, 3, 1, 2).float()
    if noisy and NOISE:
        strength = torch.rand(len(shades), 1, 1, 1, device=shades.device) * NOISE
        shades = (shades + torch.randn_like(shades[:, :1]) * strength).clamp(0, 255)
    return (shades / 255 - MEAN) / STD


def padded(rows: list[list[int]], fill: int, left: bool = False, multiple: int = 1) -> Tensor:
    width = math.ceil(max(map(len, rows)) / multiple) * multiple
    sides = [[fill] * (width - len(row)) for row in rows]
    return torch.tensor([side + row if left else row + side for row, side in zip(rows, sides, strict=True)])


def generated(model: torch.nn.Module, ids: Tensor, pixels: Tensor) -> Tensor:
    pictures = normalized(pixels.to(ids.device))
    return model.generate(input_ids=ids, attention_mask=(ids != PAD).long(), pixel_values=pictures, do_sample=False,
                          max_new_tokens=MAX_NEW_TOKENS, eos_token_id=END, pad_token_id=PAD)  # fmt: skip
