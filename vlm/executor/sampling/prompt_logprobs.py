"""Keeps on the host the log-probabilities of prompts' tokens, for the sequences that want them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from vlm.ops.sampling.topk_logprobs import topk_logprobs
from vlm.requests.sequence import Sequence
from vlm.requests.token_update import PromptLogprobs, ScoredPrompt


class LogprobsTensors(NamedTuple):
    """What rows of a prompt say about the tokens behind them."""

    own: Tensor  # [n] float32: log-probabilities of the tokens that follow; NaN of rows that are no tokens
    values: Tensor  # [n, k] float32: those of the likeliest ones,
    ids: Tensor  # [n, k] int64: … and which these are


def logprobs_of(logits: Tensor, tokens: Tensor, count: int) -> LogprobsTensors:
    """Returns what logits [n, V] say about the tokens [n] int64 behind them, with the `count` likeliest."""
    vocab_size = logits.shape[1]
    virtual = tokens >= vocab_size
    values, ids, normalizer = topk_logprobs(logits, max(1, min(count, vocab_size)))
    own = logits.gather(1, tokens.masked_fill(virtual, 0)[:, None]).float()[:, 0] - normalizer
    return LogprobsTensors(
        own.masked_fill(virtual, math.nan), (values - normalizer[:, None])[:, :count], ids[:, :count]
    )


class PromptLogprobsRecorder:
    """Scores of prompts by their sequences' ids, chunk by chunk, until the first token has come."""

    def __init__(self) -> None:
        self._parts: dict[int, list[LogprobsTensors]] = {}

    def keep(self, sequence: Sequence, start: int, logits: Tensor) -> None:
        """Keeps what logits [n, V] of a prompt's rows, from its row `start` on, say; those from 0 replace what was
        kept."""
        kept, count = self._parts.setdefault(sequence.id, []), sequence.request.params.prompt_logprobs
        assert count is not None
        if start == 0:
            kept.clear()
        behind = torch.tensor(sequence.tokens[start + 1 : start + 1 + len(logits)], device=logits.device)
        kept.append(LogprobsTensors(*(each.cpu() for each in logprobs_of(logits, behind, count))))

    def take(self, sequence: Sequence) -> ScoredPrompt:
        """Forgets what was kept of a prompt, and returns it with its scores."""
        scores: PromptLogprobs = [None]
        parts = self._parts.pop(sequence.id, ())
        rows = (row for part in parts for row in zip(*(each.tolist() for each in part), strict=True))
        for token, (own, values, ids) in zip(sequence.tokens[1 : sequence.prompt_length], rows, strict=True):
            scores.append(None if math.isnan(own) else {token: own} | dict(zip(ids, values, strict=True)))
        return ScoredPrompt(sequence.request.decoder_prompt_token_ids, scores)

    def drop(self, sequences: Iterable[Sequence]) -> None:
        """Forgets sequences that have ended."""
        if self._parts:
            for sequence in sequences:
                self._parts.pop(sequence.id, None)
