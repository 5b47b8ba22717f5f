"""An engine beside Hugging Face on inputs that need no files: random ids and pixels of its family's kinds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from vlm_app.accuracy import Accuracy, Reference, compared, greedy

from vlm.errors import InputError
from vlm.files import read_json

if TYPE_CHECKING:
    from vlm.pipeline import Pipeline

LENGTHS = (17, 3, 1, 40, 9)  # of random prompts and texts; longer ones are cut to what the engine takes
TOLERANCE = {"float32": 1e-3, "float16": 1e-1, "bfloat16": 5e-1, "int8": 1.0}  # of a log-probability
FIRST_ID = 3  # below are special tokens, in most vocabularies


@dataclass(frozen=True)
class Verified:
    """One request of a verification."""

    request: str  # what it was
    accuracy: Accuracy


def verify(pipeline: Pipeline, folder: Path, new_tokens: int, seed: int = 0) -> list[Verified]:
    """Every request's accuracy; all of them ran in one batch. InputError where so many tokens leave no room."""
    config = read_json(folder / "config.json", InputError, "Hugging Face model folder")
    placeholder = config.get("image_token_id", config.get("image_token_index"))
    inputs = RandomInputs(pipeline, placeholder, new_tokens, seed).all()
    sampling = greedy({"max_new_tokens": new_tokens, "min_new_tokens": new_tokens})  # none ends early
    outputs = pipeline.generate([given for _, given in inputs], **sampling)
    reference = Reference.load(folder, pipeline)
    requests = [pipeline.request(given, **sampling) for _, given in inputs]
    return [
        Verified(name, compared(reference, [request], [output]))
        for (name, _), request, output in zip(inputs, requests, outputs, strict=True)
    ]


class RandomInputs:
    """What a family takes, drawn from a seed. `placeholder`: an id that stands for an image, and must not be drawn"""

    def __init__(self, pipeline: Pipeline, placeholder: int | None, new_tokens: int, seed: int):
        executor = pipeline.llm.executor
        self.asked = pipeline.family.prompt is not None
        self.visual, self.placeholder = executor.visual and executor.visual.config, placeholder
        self.key = "encoder_input_ids" if executor.encoder else "decoder_prompt_token_ids"
        self.vocab = (executor.encoder or executor.decoder).config.vocab_size
        self.room = pipeline.llm.max_encoder_len if executor.encoder else pipeline.llm.max_seq_len - new_tokens
        self.generator = torch.Generator().manual_seed(seed)
        if self.room < 1:
            raise InputError(f"{new_tokens} new tokens leave no room for a prompt in this engine; ask for fewer.")

    def all(self) -> list[tuple[str, dict[str, Any]]]:
        """(what it is, the input)"""
        if self.visual is not None and not self.asked:
            return [(f"image {i}", {"pixel_values": self._pixels(1)[0]}) for i in range(1, 4)]
        texts = [self._ids(min(length, self.room)) for length in LENGTHS]
        found = [(f"{len(ids)} tokens", {self.key: ids}) for ids in texts]
        return found + (self._with_images(texts[0]) if self.visual is not None else [])

    def _with_images(self, ids: list[int]) -> list[tuple[str, dict[str, Any]]]:
        """A text after one image and after two, as far as they fit."""
        found = []
        for images in (1, 2):
            rows = list(range(self.vocab, self.vocab + images * self.visual.num_features))
            if len(rows) + len(ids) <= self.room:
                name = f"{images} image{'s' if images > 1 else ''}, {len(ids)} tokens"
                found.append((name, {self.key: rows + ids, "pixel_values": self._pixels(images)}))
        return found

    def _pixels(self, images: int) -> Tensor:
        return torch.randn(images, self.visual.num_channels, *self.visual.image_size, generator=self.generator)

    def _ids(self, length: int) -> list[int]:
        low = min(FIRST_ID, self.vocab - 1)
        drawn = torch.randint(low, self.vocab, (length,), generator=self.generator).tolist()
        return [low if i == self.placeholder else i for i in drawn]
