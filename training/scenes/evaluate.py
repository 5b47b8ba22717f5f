"""Exact match of answers, by kind of question."""

from __future__ import annotations

from collections import defaultdict

import torch

from training.scenes.loader import Examples
from training.scenes.questions import KINDS
from training.scenes.subject import Subject

TOGETHER = 500  # questions


@torch.no_grad()
def evaluate(subject: Subject, examples: Examples, device: torch.device) -> dict[str, dict[str, float]]:
    """{kind: {"questions": how many, "exact": the share answered as a whole}}, and "all"."""
    asked = [(i, *question) for i, scene in enumerate(examples.questions) for question in scene]
    right: dict[str, list[bool]] = defaultdict(list)
    for begin in range(0, len(asked), TOGETHER):
        part = asked[begin : begin + TOGETHER]
        pixels = examples.pixels[[i for i, *_ in part]]
        found = subject.answers(pixels, [question for _, _, question, _ in part], device)
        for (_, kind, _, wanted), answer in zip(part, found, strict=True):
            right[kind].append(answer == wanted)
    everything = [hit for hits in right.values() for hit in hits]
    groups = {kind: right[kind] for kind in KINDS if kind in right} | {"all": everything}
    return {name: {"questions": len(hits), "exact": sum(hits) / len(hits)} for name, hits in groups.items()}


def show(results: dict[str, dict[str, float]]) -> str:
    return ", ".join(f"{name} {100 * result['exact']:.1f}%" for name, result in results.items())
