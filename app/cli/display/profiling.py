"""--run-profiling: where the time of a run went."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vlm.api.pipeline import Output, Pipeline

STAGES = ("preprocess", "encode", "prefill", "decode")


def tokens_of(outputs: list[Output]) -> int:
    """Counts the tokens of all outputs, alternatives included."""
    return sum(len(one.token_ids) for out in outputs for one in (out, *getattr(out, "alternatives", ())))


class Profile:
    """Adds up the calls of a pipeline."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys((*STAGES, "total"), 0.0)
        self.requests, self.tokens = 0, 0
        self.first: list[float] = []  # seconds to the first token of each request

    def timed(self, pieces: Iterator[str]) -> Iterator[str]:
        """Passes a stream on and notes when its first piece came."""
        start, first = time.perf_counter(), None
        for piece in pieces:
            first = first or time.perf_counter() - start
            yield piece
        if first is not None:
            self.first.append(first)

    def add(self, pipeline: Pipeline, outputs: list[Output]) -> None:
        """Adds a call. Where nothing was streamed, the first token's time is that of all that comes before it."""
        times = pipeline.timings
        for name in self.seconds:
            self.seconds[name] += times[name]
        self.requests, self.tokens = self.requests + len(outputs), self.tokens + tokens_of(outputs)
        step = times["decode"] / max((len(out.token_ids) for out in outputs), default=1)
        self.first += [sum(times[name] for name in STAGES[:3]) + step] * (self.requests - len(self.first))

    def print(self, encoder: str) -> None:
        """Prints a table on stderr; `encoder`: what the encoder's time is called."""
        names = {"preprocess": "preprocess", "encode": encoder, "prefill": "prefill", "decode": "decode"}
        rows = [(label, f"{self.seconds[name]:9.3f} s") for name, label in names.items()]
        rows.append(("total", f"{self.seconds['total']:9.3f} s"))
        rows.append(("requests", f"{self.requests:5d}"))
        rate = self.tokens / self.seconds["decode"] if self.seconds["decode"] > 0 else 0.0
        rows.append(("tokens", f"{self.tokens:5d}      {rate:,.1f} tokens/s decoding"))
        if self.first:
            rows.append(("first token", f"{sum(self.first) / len(self.first):9.3f} s  mean of the requests"))
        print("\n".join(f"{name:<12}{value}" for name, value in rows), file=sys.stderr)


def print_profile(profile: Profile, pipeline: Pipeline) -> None:
    profile.print("vision" if pipeline.capabilities.takes_images else "encoder")
