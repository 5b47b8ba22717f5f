"""Where sequences end and why: the device looks for end tokens, the host for stop words and strings."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from vlm.requests.finish import FINISH_REASONS, LENGTH, STOP
from vlm.requests.request import Request
from vlm.requests.sequence import Sequence
from vlm.requests.token_update import Hypothesis


@dataclass(frozen=True)
class Endings:
    """What ends the sequences of an engine."""

    eos_token_ids: tuple[int, ...]  # the model's

    def stop_ids(self, request: Request) -> tuple[int, ...]:
        """Returns the tokens that end a request's output, each once."""
        eos = () if request.params.ignore_eos else self.eos_token_ids
        return _joined(eos, request.params.stop_token_ids)

    def reason(self, sequence: Sequence, code: int, last: int | None = None) -> str:
        """Returns why a sequence has ended, of which the device says `code`; `last`: its last token, where that is not
        the last one of its own tokens."""
        reason = FINISH_REASONS[code]
        ended_by_eos = reason == "stop" and (sequence.tokens[-1] if last is None else last) in self.eos_token_ids
        return "eos" if ended_by_eos and not sequence.request.params.ignore_eos else reason

    def hypothesis_reason(self, sequence: Sequence, hypothesis: Hypothesis) -> str:
        """Returns why a hypothesis of this search ended."""
        token_ids, words = hypothesis.token_ids, sequence.request.params.stop_words_ids
        if not token_ids:
            return "stop"  # its settings left the search no token to go on with
        at_stop = token_ids[-1] in self.stop_ids(sequence.request) or any(_ends_with(token_ids, w) for w in words)
        return self.reason(sequence, STOP if at_stop else LENGTH, token_ids[-1])


def end_of_text(sequence: Sequence, known: int) -> int | None:
    """Returns the tokens, prompt included, up to the first stop word or string that ends after the first `known`; None:
    there is none. What was generated is not copied: each burst would take longer than the one before."""
    request, tokens, start = sequence.request, sequence.tokens, sequence.prompt_length
    ends = [
        n
        for word in request.params.stop_words_ids
        for n in range(max(known + 1, start + len(word)), len(tokens) + 1)
        if tuple(tokens[n - len(word) : n]) == tuple(word)
    ]
    if request.stops is not None and (end := request.stops.end(tokens, known, start=start)) is not None:
        ends.append(end)
    return min(ends, default=None)


@functools.lru_cache(maxsize=256)  # of settings that many requests share
def _joined(eos_token_ids: tuple[int, ...], stop_token_ids: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*eos_token_ids, *stop_token_ids)))


def _ends_with(tokens: list[int], word: tuple[int, ...]) -> bool:
    return tuple(tokens[-len(word) :]) == tuple(word)
