"""Held-out pages, how many characters of them are read wrongly, and by kind of page."""

from __future__ import annotations

import collections
import random
from dataclasses import dataclass

import numpy as np
import torch

from training.nougat.model import normalize
from training.nougat.typesetting.pages import KINDS, Renderer
from training.nougat.typesetting.text import CHARACTERS, EOS


@dataclass(frozen=True)
class HeldOutPage:
    kind: str
    image: np.ndarray  # [HEIGHT, WIDTH] uint8
    text: str


def held_out_pages(renderer: Renderer, count: int, seed: int, **options) -> list[HeldOutPage]:
    """Pages whose words are never in training, the kinds in turn; options go to `Renderer.sample`."""
    rng, found = random.Random(seed), []
    for i in range(count):
        kind = KINDS[i % len(KINDS)]
        length = rng.randint(80, 160) if rng.random() < 0.15 else rng.randint(180, 285)
        sample = renderer.sample(rng, kind, max_chars=length, held_out=True, **options)
        found.append(HeldOutPage(kind, sample.image, sample.text))
    return found


def decode(ids: list[int]) -> str:
    ids = ids[: ids.index(EOS)] if EOS in ids else ids
    return "".join(CHARACTERS[i - 4] for i in ids if i >= 4)


@torch.inference_mode()
def read(model, pages: list[HeldOutPage], device: torch.device, batch_size: int = 256) -> list[str]:
    """Greedy, by Hugging Face's generate."""
    texts = []
    for i in range(0, len(pages), batch_size):
        images = torch.from_numpy(np.stack([page.image for page in pages[i : i + batch_size]])).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            ids = model.generate(pixel_values=normalize(images), do_sample=False, num_beams=1, max_length=300)
        texts += [decode(row) for row in ids[:, 1:].tolist()]
    return texts


def score(pages: list[HeldOutPage], texts: list[str]) -> dict:
    """Character error rate (edit distance over true characters) by kind and in all; pages read without an error."""
    wrong, total, exact = collections.Counter(), collections.Counter(), 0
    for page, text in zip(pages, texts, strict=True):
        distance = edit_distance(page.text, text)
        for kind in (page.kind, "all"):
            wrong[kind] += distance
            total[kind] += len(page.text)
        exact += distance == 0
    rates = {kind: round(wrong[kind] / total[kind], 5) for kind in (*KINDS, "all") if total[kind]}
    return {"pages": len(pages), "exact_pages": round(exact / len(pages), 4), "cer": rates}


def edit_distance(a: str, b: str) -> int:
    """Levenshtein distance, bit-parallel (Myers 1999; Hyyrö 2003) on Python's long integers."""
    if not a or not b:
        return len(a) + len(b)
    where: dict[str, int] = {}
    for i, character in enumerate(a):
        where[character] = where.get(character, 0) | 1 << i
    full, top = (1 << len(a)) - 1, 1 << len(a) - 1
    plus, minus, distance = full, 0, len(a)
    for character in b:
        equal = where.get(character, 0)
        diagonal = (((equal & plus) + plus) ^ plus) | equal | minus
        up, down = minus | ~(diagonal | plus), plus & diagonal
        distance += bool(up & top) - bool(down & top)
        up, down = up << 1 | 1, down << 1
        plus, minus = (down | ~(diagonal | up)) & full, up & diagonal & full
    return distance
