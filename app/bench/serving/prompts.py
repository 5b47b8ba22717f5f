"""What is asked: prompts of random words and images, each of its own, so that no cache of a server helps."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from vlm_app.bench.pages.pictures import soft_colours
from vlm_app.bench.pages.words import WORDS
from vlm_app.bench.serving.config import ServeBenchConfig

GRAIN = 5.0  # standard deviation, of 255
JPEG_QUALITY = 85


@dataclass(frozen=True)
class Prompt:
    """One request's input, and how many tokens are asked for."""

    output_len: int
    text: str = ""
    images: tuple[str, ...] = ()  # URLs
    messages: list[Any] = field(default_factory=list)  # of a chat, in place of both

    def content(self, endpoint: str) -> dict[str, Any]:
        """Returns the fields of a body that hold the input."""
        if endpoint == "completions":
            return {"prompt": self.text}
        if self.messages:
            return {"messages": self.messages}
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in self.images]
        content = [*parts, {"type": "text", "text": self.text}] if parts else self.text
        return {"messages": [{"role": "user", "content": content}]}


def draw_prompt(config: ServeBenchConfig, words_per_token: float, seed: Sequence[int]) -> Prompt:
    """Draws a prompt, its text and its images of a length and size within the configuration's."""
    generator = np.random.default_rng(seed)
    length, output_len = (draw_length(generator, limits) for limits in (config.drawn("input_len"), config.output_len))
    sizes = config.drawn("image_sizes")
    turn = seed[-1] * config.drawn("images")
    images = (draw_image(generator, sizes[(turn + n) % len(sizes)]) for n in range(config.drawn("images")))
    return Prompt(output_len, draw_words(generator, round(length * words_per_token)), tuple(images))


def draw_length(generator: np.random.Generator, limits: tuple[int, int]) -> int:
    """Draws a length, each of the range as likely."""
    return int(generator.integers(limits[0], limits[1], endpoint=True))


def draw_words(generator: np.random.Generator, count: int) -> str:
    """Draws so many words, one at least."""
    return " ".join(WORDS[number] for number in generator.integers(len(WORDS), size=max(1, count)))


def draw_image(generator: np.random.Generator, size: tuple[int, int]) -> str:
    """Draws a picture of soft colours under grain, which takes about a photograph's bytes, as a data: URL of a JPEG."""
    picture = np.asarray(soft_colours(generator, size), np.float32)
    grain = GRAIN * generator.standard_normal((*picture.shape[:2], 1), np.float32)
    file = io.BytesIO()
    Image.fromarray((picture + grain).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=JPEG_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
