"""A launched burst of decode steps, and its results once they are on the host."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vlm.requests.sequence import Sequence
from vlm.requests.token_update import Hypothesis

HEAD = 4  # integers before a result's tokens: length, finish code, tokens drafted and accepted


class StepOutput(NamedTuple):
    """What a burst brought for one sequence; tokens and what belongs to them are stale beyond the length."""

    length: int  # tokens in all
    code: int  # see vlm.ops.sampling.append_and_check_stop
    tokens: list[int]
    logprobs: list[float]
    top: Items[dict[int, float]] = ()
    logits: Tensor | None = None  # [steps, vocab] float32
    num_drafted: int = 0  # tokens proposed in all,
    num_accepted: int = 0  # … and those of them that were chosen


@dataclass
class DecodeBurst:
    """A launched burst of so many steps, which bring a sequence N tokens at most: with drafts more than one each, and
    one ahead of them where prompts have just been computed. The tensors are on the host once `ready` has passed."""

    sequences: list[Sequence]
    steps: int
    drafts: int  # tokens proposed for each sequence in a step
    result: Tensor  # [R, HEAD + 2 N] int32: its head, new tokens, log-probabilities (bits)
    top: Tensor | None  # [R, N, 2, n] int32: ids of the n likeliest tokens, log-probabilities (bits)
    logits: Tensor | None  # [n, N, vocab] float32: of the sequences that want them
    ready: torch.cuda.Event | None

    def collect(self) -> list[StepOutput]:
        """Waits for the burst; a result a sequence."""
        if self.ready is not None:
            self.ready.synchronize()
        end = (self.result.shape[1] + HEAD) // 2
        logprobs = self.result[:, end:].contiguous().view(torch.float32).tolist()
        rows = zip(self.result[:, :end].tolist(), logprobs, self._top(), self._logits(), strict=True)
        return [StepOutput(r[0], r[1], r[HEAD:], p, top, logits, r[2], r[3]) for r, p, top, logits in rows]

    def _logits(self) -> list[Tensor | None]:
        logits = iter(() if self.logits is None else self.logits)
        return [next(logits) if s.request.params.returns_logits else None for s in self.sequences]

    def _top(self) -> Items[Items[dict[int, float]]]:
        if self.top is None:
            return [()] * len(self.sequences)
        counts = [s.request.params.top_logprobs for s in self.sequences]
        ids, values = self.top[..., : max(counts)].unbind(2)
        ids, values = ids.tolist(), values.contiguous().view(torch.float32).tolist()
        return [
            [dict(zip(i[:n], v[:n], strict=True)) for i, v in zip(row_ids, row_values, strict=True)] if n else []
            for row_ids, row_values, n in zip(ids, values, counts, strict=True)
        ]


def hypotheses_of(
    rows: Iterable[tuple[list[int], list[float], int, float]], prompt: int, start: int
) -> list[Hypothesis]:
    """Turns (tokens from the place `start` on, their log-probabilities, length, score) into what was generated after a
    prompt of so many tokens: nothing where the length is 0, as none ended, and the row is an earlier search's."""
    cut = lambda values, length: values[prompt - start : max(length - start, 0)]  # noqa: E731
    return [Hypothesis(cut(tokens, length), cut(logprobs, length), score) for tokens, logprobs, length, score in rows]


def to_host(tensor: Tensor) -> Tensor:
    """Starts a copy into pinned memory."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
