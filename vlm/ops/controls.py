"""What a request forbids or discourages, applied to its logits: penalties, repeated n-grams, bad words, early ends.

Penalties: Keskar et al., CTRL (arXiv:1909.05858) for `repetition`, over prompt and output as Hugging Face has it;
`presence` and `frequency` as OpenAI's API has them, over the output alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.limits import MAX_NGRAM, MAX_WORD, MAX_WORDS
from vlm.ops.advance import SlotState


@dataclass(frozen=True)
class ControlState:
    """Per slot; `S` slots."""

    repetition: Tensor  # [S] float32, 1: off
    presence: Tensor  # [S] float32, 0: off
    frequency: Tensor  # [S] float32, 0: off
    min_lengths: Tensor  # [S] int32: no end or stop token before so many tokens are there
    ngrams: Tensor  # [S] int32: n-grams of this size must not repeat, 0: off
    words: Tensor  # [S, MAX_WORDS, MAX_WORD] int32, each padded with -1 on its left

    @classmethod
    def empty(cls, size: int, device: torch.device) -> ControlState:
        ints = lambda *dims: torch.zeros(size, *dims, dtype=torch.int32, device=device)  # noqa: E731
        zeros = lambda: torch.zeros(size, device=device)  # noqa: E731
        return cls(zeros() + 1, zeros(), zeros(), ints(), ints(), ints(MAX_WORDS, MAX_WORD) - 1)


def apply(logits: Tensor, state: SlotState, controls: ControlState, slots: Tensor) -> Tensor:
    """logits [R, V] of the rows `slots` [R] -> float32 [R, V] with what is forbidden at -inf. Nothing waits for the
    host."""
    s = slots.long()
    # rows of a prompt table have no logits: they count in the column of what is not forbidden
    history, length = state.tokens[s].long().clamp(max=logits.shape[1]), state.lengths[s][:, None]
    logits = _penalized(logits.float(), history, length, state.prompt_lengths[s][:, None], controls, s)
    forbidden = torch.zeros(len(s), logits.shape[1] + 1, dtype=torch.bool, device=logits.device)
    nothing = logits.shape[1]  # a column of its own takes what is not forbidden
    for ids, holds in (
        _repeating_ngrams(history, length, controls.ngrams[s][:, None]),
        _bad_words(history, length, controls.words[s].long()),
        _early_ends(length, state.stop_ids[s].long(), controls.min_lengths[s][:, None]),
    ):
        forbidden.scatter_(1, torch.where(holds & (ids >= 0), ids, nothing), True)
    return logits.masked_fill(forbidden[:, :-1], float("-inf"))


def _penalized(
    logits: Tensor, history: Tensor, length: Tensor, prompt: Tensor, controls: ControlState, s: Tensor
) -> Tensor:
    at = torch.arange(history.shape[1], device=logits.device)
    none = logits.new_zeros(len(logits), logits.shape[1] + 1)
    counted = lambda held: none.scatter_add(1, history, held.float())[:, :-1]  # noqa: E731
    seen = counted(at < length) > 0
    output = counted((at < length) & (at >= prompt))
    repetition = controls.repetition[s][:, None]
    logits = torch.where(seen, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    logits = logits - controls.presence[s][:, None] * (output > 0)
    return logits - controls.frequency[s][:, None] * output


def _repeating_ngrams(history: Tensor, length: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates [R, T]: the token after each earlier place, and whether the n - 1 tokens before it end the history."""
    width = history.shape[1]
    at = torch.arange(width, device=history.device)[None]
    holds = (n > 0) & (at < length) & (at >= n - 1)
    for back in range(1, MAX_NGRAM):
        earlier = history.gather(1, (at - back).clamp(min=0).expand(len(history), -1))
        tail = history.gather(1, (length - back).clamp(min=0).long())
        holds = holds & ((earlier == tail) | (back >= n))
    return history, holds


def _bad_words(history: Tensor, length: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates [R, MAX_WORDS]: each word's last token, and whether the tokens before it end the history."""
    back = torch.arange(MAX_WORD - 1, 0, -1, device=history.device)[None]
    places = length - back
    tail = history.gather(1, places.clamp(min=0).long())[:, None]
    start = words[..., :-1]
    holds = ((start < 0) | ((start == tail) & (places >= 0)[:, None])).all(-1)
    return words[..., -1], holds


def _early_ends(length: Tensor, ends: Tensor, min_length: Tensor) -> tuple[Tensor, Tensor]:
    return ends, (length < min_length).expand_as(ends)
