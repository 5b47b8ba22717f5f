"""What a request forbids, discourages or favours, applied to its logits in the order of Hugging Face's processors.

Biases of sequences, penalties, repeated n-grams, bad words, early ends, several forced ends, invalid values, ends that
get likelier, suppressed tokens, and at last the normalization. Penalties: Keskar et al., CTRL (arXiv:1909.05858) for
`repetition`, over prompt and output as Hugging Face has it; `presence` and `frequency` as OpenAI's API has them, over
the output alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vlm.ops.beam_state import Groups
from vlm.ops.sequence_state import SequenceState
from vlm.ops.token_rules import ALLOW, BAN, BIAS, FORCE, SEEN, SUPPRESS, RowRules, TokenRules, row_rules

NGRAM = 8  # n-grams up to this size are looked for in any case


@dataclass(frozen=True)
class PenaltyState:
    """Per slot; `S` slots."""

    repetition: Tensor  # [S] float32, 1: off
    presence: Tensor  # [S] float32, 0: off
    frequency: Tensor  # [S] float32, 0: off
    min_lengths: Tensor  # [S] int32: no end or stop token before so many tokens are there
    ngrams: Tensor  # [S] int32: n-grams of this size must not repeat, 0: off
    input_repetition: Tensor  # [S] float32: `repetition` over the input's tokens, 1: off
    decay_starts: Tensor  # [S] int32: tokens after which ends get likelier,
    decay_factors: Tensor  # [S] float64: by this factor each, 1: off
    clean: Tensor  # [S] bool: NaN and infinite values become finite
    normalize: Tensor  # [S] bool: probabilities add up to 1 again

    @classmethod
    def empty(cls, size: int, device: torch.device) -> PenaltyState:
        ints = lambda: torch.zeros(size, dtype=torch.int32, device=device)  # noqa: E731
        floats = lambda: torch.zeros(size, device=device)  # noqa: E731
        flags = lambda: torch.zeros(size, dtype=torch.bool, device=device)  # noqa: E731
        return cls(
            floats() + 1, floats(), floats(), ints(), ints(), floats() + 1, ints(), floats().double() + 1, flags(),
            flags(),
        )  # fmt: skip


@dataclass(frozen=True)
class Processing:
    """What a batch needs beyond penalties, short n-grams and shortest lengths. Known to the host, part of a graph."""

    rules: tuple[int, ...] = ()  # kinds of rules about tokens
    ngrams: int = NGRAM  # size of the longest n-gram
    rare: bool = False  # ends that get likelier, invalid values, normalization


PLAIN = Processing()


def apply(
    logits: Tensor,
    state: SequenceState,
    penalties: PenaltyState,
    slots: Tensor,
    rules: TokenRules | None = None,
    processing: Processing = PLAIN,
    groups: Groups | None = None,
) -> Tensor:
    """Processes logits [R, V] of the rows `slots` [R] -> float32 [R, V] with what is forbidden at -inf; `groups`: rows
    that are beams of one search, where they are. Nothing waits for the host."""
    s, logits = slots.long(), logits.float()
    # rows of a prompt table have no logits: they count in the column of what is not forbidden
    history, length = state.tokens[s].long().clamp(max=logits.shape[1]), state.lengths[s][:, None]
    token_rules = row_rules(rules, state, s, logits.shape[1]) if rules is not None and processing.rules else None
    if token_rules is not None:
        logits = _favoured(logits, penalties.input_repetition[s][:, None], token_rules, processing.rules)
    logits = _penalized(logits, history, length, state.prompt_lengths[s][:, None], penalties, s)
    ends = _inside(state.stop_ids[s].long(), logits.shape[1])
    forbidden = torch.zeros(len(s), logits.shape[1] + 1, dtype=torch.bool, device=logits.device)
    nothing = logits.shape[1]  # a column of its own takes what is not forbidden
    for ids, holds in (
        _repeating_ngrams(history, length, penalties.ngrams[s][:, None], processing.ngrams),
        (ends, (length < penalties.min_lengths[s][:, None]).expand_as(ends)),
    ):
        forbidden.scatter_(1, torch.where(holds, ids, nothing), True)
    logits = logits.masked_fill(forbidden[:, :-1], float("-inf"))
    if token_rules is not None:
        logits = _ruled(logits, token_rules, processing.rules, groups)
    if processing.rare:
        logits = _cleaned(logits, penalties.clean[s][:, None])
        logits = _ending(logits, ends, length, penalties.decay_starts[s][:, None], penalties.decay_factors[s][:, None])
    if token_rules is not None and SUPPRESS in processing.rules:
        logits = logits.masked_fill(token_rules.marked(SUPPRESS), float("-inf"))
    return _normalized(logits, penalties.normalize[s][:, None]) if processing.rare else logits


def _inside(ids: Tensor, vocab_size: int) -> Tensor:
    """Gives ids that are none of the vocabulary the column after it."""
    return torch.where((ids >= 0) & (ids < vocab_size), ids, vocab_size)


def _favoured(logits: Tensor, repetition: Tensor, token_rules: RowRules, kinds: tuple[int, ...]) -> Tensor:
    if BIAS in kinds:
        logits = logits + token_rules.bias()
    if SEEN in kinds:
        scores = torch.where(logits < 0, logits / repetition, logits * repetition)
        logits = torch.where(token_rules.marked(SEEN), scores, logits)
    return logits


def _ruled(logits: Tensor, token_rules: RowRules, kinds: tuple[int, ...], groups: Groups | None) -> Tensor:
    """Forbids bad words, all but what is allowed, and where one of several ends must come, all but these, whose scores
    become alike."""
    if BAN in kinds:
        logits = logits.masked_fill(token_rules.marked(BAN), float("-inf"))
    if ALLOW in kinds:
        logits = _allowed(logits, token_rules.marked(ALLOW), groups)
    if FORCE in kinds:
        force = token_rules.marked(FORCE)
        scores = torch.where(force, 0.0, float("-inf"))
        logits = torch.where(force.any(1, keepdim=True), scores, logits)
    return logits


def _allowed(logits: Tensor, allow: Tensor, groups: Groups | None) -> Tensor:
    """Forbids all but the tokens `allow` [R, V] bool of rows that have some; where nothing else is left of a row, or of
    all beams of a search, these may come again, with scores that are alike."""
    logits = logits.masked_fill(allow.any(1, keepdim=True) & ~allow, float("-inf"))
    stuck = logits.amax(1) == float("-inf")
    if groups is not None:
        rows = torch.where(groups.beams, groups.rows, len(logits)).long()  # those of no beam have a place of their own
        every = torch.nn.functional.pad(stuck, (0, 1), value=True)[rows].all(1, keepdim=True)
        stuck = stuck.new_zeros(len(logits) + 1).scatter(0, rows.flatten(), every.expand_as(rows).flatten())[:-1]
    return torch.where(stuck[:, None] & allow, 0.0, logits)


def _cleaned(logits: Tensor, clean: Tensor) -> Tensor:
    return torch.where(clean, logits.nan_to_num(nan=0.0), logits)


def _ending(logits: Tensor, ends: Tensor, length: Tensor, start: Tensor, factor: Tensor) -> Tensor:
    """Lets ends [R, n] gain factor ** (tokens since the start) - 1 times their own size."""
    wide = torch.nn.functional.pad(logits, (0, 1))
    own, since = wide.gather(1, ends), (length - start).clamp(min=0)
    gain = own.abs() * (factor**since - 1).float()
    return wide.scatter(1, ends, torch.where(own.isfinite(), own + gain, own))[:, :-1]


def _normalized(logits: Tensor, normalize: Tensor) -> Tensor:
    """Normalizes the rows that are to be; one of which nothing is left stays as it is."""
    any_left = (logits > float("-inf")).any(1, keepdim=True)
    return torch.where(normalize & any_left, logits.log_softmax(-1), logits)


def _penalized(
    logits: Tensor, history: Tensor, length: Tensor, prompt: Tensor, penalties: PenaltyState, s: Tensor
) -> Tensor:
    at = torch.arange(history.shape[1], device=logits.device)
    none = logits.new_zeros(len(logits), logits.shape[1] + 1)
    count = lambda mask: none.scatter_add(1, history, mask.float())[:, :-1]  # noqa: E731
    present = count(at < length) > 0
    output = count((at < length) & (at >= prompt))
    repetition = penalties.repetition[s][:, None]
    logits = torch.where(present, torch.where(logits > 0, logits / repetition, logits * repetition), logits)
    logits = logits - penalties.presence[s][:, None] * (output > 0)
    return logits - penalties.frequency[s][:, None] * output


def _repeating_ngrams(history: Tensor, length: Tensor, n: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Returns candidates [R, T], the token after each earlier place, and whether the n - 1 tokens before it end the
    history."""
    width = history.shape[1]
    at = torch.arange(width, device=history.device)[None]
    holds = (n > 0) & (at < length) & (at >= n - 1)
    for back in range(1, longest):
        earlier = history.gather(1, (at - back).clamp(min=0).expand(len(history), -1))
        tail = history.gather(1, (length - back).clamp(min=0).long())
        holds = holds & ((earlier == tail) | (back >= n))
    return history, holds
