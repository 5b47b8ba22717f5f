"""What comes back: outputs of generation, encodings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vlm.runtime.request import SamplingParams, Sequence

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Output:
    """What one input gave."""

    text: str  # post-processed (Nougat: markdown)
    raw_text: str  # as decoded
    token_ids: list[int]  # generated, the end token included
    finish_reason: str  # eos | length | stop | loop | abort
    logprobs: list[float]  # of each generated token, under the model at temperature 1
    seed: int  # gives the same tokens again
    top_logprobs: list[dict[int, float]] | None = None  # of each place, the likeliest tokens, as many as asked for
    score: float | None = None  # of a beam search: what its outcomes are ranked by
    alternatives: tuple[Output, ...] = ()  # the other ones of num_return_sequences, best first

    @property
    def cumulative_logprob(self) -> float:
        """Of the whole output."""
        return sum(self.logprobs)


@dataclass(frozen=True)
class Encoding:
    """What the encoder made of one input of `T` rows."""

    last_hidden_state: torch.Tensor  # [T, hidden], in the engine's type
    token_ids: tuple[int, ...] | None = None  # of a text
    hidden_states: tuple[torch.Tensor, ...] | None = None  # embeddings, each block's output, the last one normalized
    attentions: tuple[torch.Tensor, ...] | None = None  # a block: [heads, T, T] float32


class Samples:
    """The requests that one input has become."""

    def __init__(self, index: int, params: SamplingParams):
        self.index, self.count = index, 1 if params.num_beams > 1 else params.num_return_sequences
        self.ids: list[int] = []
        self.done: dict[int, Sequence] = {}

    def add(self, sequence: Sequence) -> bool:
        """Takes a finished one; True when it was the last."""
        self.done[sequence.id] = sequence
        return len(self.done) == self.count
