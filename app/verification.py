"""An engine beside Hugging Face on inputs that need no files: random ids and pixels of its family's kinds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from app.accuracy import Accuracy, Reference, compared, greedy
from vlm.errors import InputError
from vlm.files import read_json

if TYPE_CHECKING:
    from vlm.pipeline import Pipeline

LENGTHS = (17, 3, 1, 40, 9)  # of random prompts and texts; longer ones are cut to what the engine takes
TOLERANCE = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 5e-1}  # of a log-probability
FIRST_ID = 3  # below are special tokens, in most vocabularies


@dataclass(frozen=True)
class Verified:
    """One request of a verification."""

    request: str  # what it was
    accuracy: Accuracy


def verify(pipeline: Pipeline, folder: Path, new_tokens: int, seed: int = 0) -> list[Verified]:
    """Every request's accuracy; all of them ran in one batch. InputError where the family takes other inputs."""
    inputs = random_inputs(pipeline, _placeholder(folder), new_tokens, seed)
    sampling = greedy({"max_new_tokens": new_tokens})
    outputs = pipeline.generate([given for _, given in inputs], **sampling)
    reference = Reference.load(folder, pipeline)
    requests = [pipeline.request(given, **sampling) for _, given in inputs]
    return [
        Verified(name, compared(reference, [request], [output]))
        for (name, _), request, output in zip(inputs, requests, outputs, strict=True)
    ]


def random_inputs(
    pipeline: Pipeline, placeholder: int | None, new_tokens: int, seed: int
) -> list[tuple[str, dict[str, Any]]]:
    """(what it is, the input); `placeholder`: an id that must not be drawn"""
    generator = torch.Generator().manual_seed(seed)
    executor = pipeline.llm.executor
    visual, key = executor.visual, "encoder_input_ids" if executor.encoder else "decoder_prompt_token_ids"
    pixels = lambda n: torch.randn(n, visual.config.num_channels, *visual.config.image_size, generator=generator)  # noqa: E731
    if visual is not None and pipeline.family.prompt is None:
        return [(f"image {i}", {"pixel_values": pixels(1)[0]}) for i in range(1, 4)]
    vocab = (executor.encoder or executor.decoder).config.vocab_size
    room = pipeline.llm.max_encoder_len if executor.encoder else pipeline.llm.max_seq_len - new_tokens
    if room < 1:
        raise InputError(f"{new_tokens} new tokens leave no room for a prompt in this engine; ask for fewer.")
    texts = [_draw(min(length, room), vocab, placeholder, generator) for length in LENGTHS]
    found = [(f"{len(ids)} tokens", {key: ids}) for ids in texts]
    if visual is None:
        return found
    for images in (1, 2):
        rows = list(range(vocab, vocab + images * visual.config.num_features))
        if len(rows) + len(texts[0]) <= room:
            found.append(
                (f"{images} image(s), {len(texts[0])} tokens", {key: rows + texts[0], "pixel_values": pixels(images)})
            )
    return found


def _draw(length: int, vocab: int, placeholder: int | None, generator: torch.Generator) -> list[int]:
    ids = torch.randint(min(FIRST_ID, vocab - 1), vocab, (length,), generator=generator).tolist()
    return [FIRST_ID if i == placeholder else i for i in ids]


def _placeholder(folder: Path) -> int | None:
    """The id that stands for an image in Hugging Face's prompts."""
    config = read_json(folder / "config.json", InputError, "Hugging Face model folder")
    return config.get("image_token_id", config.get("image_token_index"))
