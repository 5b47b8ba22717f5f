"""A quantized model beside the dense one, on a user's inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from vlm_app.core.packages import library
from vlm_app.quantize.measure import Decoded, Said
from vlm_app.quantize.samples import Sample


@dataclass(frozen=True)
class System:
    """One of the two: its own outputs, and what it says of the dense model's tokens."""

    decoded: Decoded
    said: list[Said]

    def record(self) -> dict[str, Any]:
        """Returns the figures of this system; percentages from 0 to 100."""
        logprobs = torch.cat([each.logprobs for each in self.said])
        figures = {"perplexity": math.exp(-float(logprobs.mean())), "tokens_per_s": self.decoded.tokens_per_second}
        return figures | _scores(self.decoded)


def compared(dense: System, quantized: System) -> dict[str, Any]:
    """Returns the figures of both, and how far they agree; of samples that both could decode."""
    pairs = list(zip(dense.said, quantized.said, strict=True))
    differences = torch.cat([a.logprobs - b.logprobs for a, b in pairs]).abs()
    same = torch.cat([a.choices == b.choices for a, b in pairs]).float()
    outputs = list(zip(dense.decoded.outputs, quantized.decoded.outputs, strict=True))
    return {
        "tokens": len(same),
        "token_agreement": 100 * float(same.mean()),
        "equal_outputs": 100 * sum(a.token_ids == b.token_ids for a, b in outputs) / len(outputs),
        "logprob_difference": {"mean": float(differences.mean()), "largest": float(differences.max())},
        "dense": dense.record(),
        "quantized": quantized.record(),
    }


def check_installed(samples: Iterable[Sample]) -> None:
    """Raises InputError, before a model is loaded, where references are known and the package is missing that compares
    with them."""
    if any(sample.reference is not None for sample in samples):
        _levenshtein()


def _levenshtein() -> Any:
    return library("rapidfuzz.distance.Levenshtein", "rapidfuzz", extra="eval", verb="a report with references")


def _scores(decoded: Decoded) -> dict[str, float]:
    """Returns the percentage of wrong characters and of outputs that are their reference, where references are
    known."""
    pairs = [
        (output.text.strip(), sample.reference.strip())
        for output, sample in zip(decoded.outputs, decoded.samples, strict=True)
        if sample.reference is not None
    ]
    if not pairs:
        return {}
    wrong = sum(_levenshtein().distance(text, reference) for text, reference in pairs)
    exact = sum(text == reference for text, reference in pairs)
    characters = max(1, sum(len(reference) for _, reference in pairs))
    return {"references": len(pairs), "character_errors": 100 * wrong / characters, "exact": 100 * exact / len(pairs)}
