"""The host's side of `vlm.ops.state.token_rules`: what requests say about tokens, packed for the device."""

from __future__ import annotations

import functools
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vlm.executor.inputs.packing import power_of_two
from vlm.executor.inputs.upload import upload
from vlm.ops.state.token_rules import ALLOW, BAN, BIAS, END, FORCE, SEEN, SUPPRESS, TokenRules
from vlm.requests.sampling_params import SamplingParams
from vlm.requests.sequence import Sequence

SMALLEST = 64  # rules and tokens before them that there is room for at first


@dataclass(frozen=True)
class PackedRules:
    """Rules of one request: a column each."""

    rules: np.ndarray  # [4, n] int32: token, kind, place, value (bits)
    prefixes: np.ndarray  # [3, p] int32: the rule's number, how far before its token, the token
    kinds: frozenset[int]

    @classmethod
    def from_words(cls, words: Items[Items[int]], kind: int, values: Items[float] = ()) -> PackedRules:
        """Packs rules of one kind about the last token of each word."""
        before = np.fromiter((len(word) - 1 for word in words), np.int64, len(words))
        ends, total = before.cumsum(), int(before.sum())
        prefixes = np.zeros((3, total), np.int32)
        prefixes[0] = np.repeat(np.arange(len(words)), before)
        prefixes[1] = np.repeat(ends, before) - np.arange(total)
        prefixes[2] = np.fromiter((token for word in words for token in word[:-1]), np.int64, total)
        rules = _columns([word[-1] for word in words], kind)
        if len(values):
            rules[3] = np.asarray(values, np.float32).view(np.int32)
        return cls(rules, prefixes, frozenset((kind,) if words else ()))

    @classmethod
    def from_ngrams(cls, tokens: Items[int], kind: int, *, size: int = 1, place: int = -1) -> PackedRules:
        """Packs rules of one kind about the last of each `size` tokens that stand together: of 1, about each token."""
        count = max(len(tokens) - size + 1, 0)
        ids, (numbers, backs, before) = np.array(tokens, np.int32), _places(count, size - 1)
        prefixes = np.empty((3, len(numbers)), np.int32)
        prefixes[0], prefixes[1], prefixes[2] = numbers, backs, ids[before]
        return cls(_columns(ids[len(ids) - count :], kind, place), prefixes, frozenset((kind,) if count else ()))

    @classmethod
    def joined(cls, parts: Items[PackedRules]) -> PackedRules:
        counts = np.array([part.rules.shape[1] for part in parts])
        prefixes = np.concatenate([part.prefixes for part in parts], 1)
        firsts = (counts.cumsum() - counts).astype(np.int32)  # of each part's rules
        prefixes[0] += np.repeat(firsts, [part.prefixes.shape[1] for part in parts])
        kinds = frozenset().union(*(part.kinds for part in parts))
        return cls(np.concatenate([part.rules for part in parts], 1), prefixes, kinds)


def _columns(tokens: Items[int] | np.ndarray, kind: int, place: int = -1) -> np.ndarray:
    """Returns the columns of rules of one kind without values."""
    rules = np.zeros((4, len(tokens)), np.int32)
    rules[0], rules[1], rules[2] = tokens, kind, place
    return rules


@functools.lru_cache(maxsize=64)
def _places(count: int, before: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns of the tokens before those of `count` rules, so many each, the rule's number, how far before its token
    they stand and where in the whole: [count * before] int32 each."""
    numbers = np.repeat(np.arange(count, dtype=np.int32), before)
    backs = np.tile(np.arange(before, 0, -1, dtype=np.int32), count)
    return numbers, backs, numbers + before - backs


def rules_of(sequences: Items[Sequence], ends: Items[Items[int]]) -> list[PackedRules | None]:
    """Returns what each request says about tokens; `ends` are those that end it. Requests of one call have their
    settings, and so most rules, in common."""
    shared: dict[tuple[int, tuple[int, ...]], PackedRules | None] = {}
    rules = []
    for sequence, own_ends in zip(sequences, map(tuple, ends), strict=True):
        params = sequence.request.params
        key = id(params), own_ends
        if key not in shared:
            shared[key] = _of_settings(params, own_ends)
        parts = [part for part in (shared[key], *_of_sequence(sequence)) if part is not None]
        rules.append(PackedRules.joined(parts) if len(parts) > 1 else parts[0] if parts else None)
    return rules


def _of_settings(params: SamplingParams, ends: tuple[int, ...]) -> PackedRules | None:
    """Returns the rules that hold at every place, if there are any."""
    # a sequence has one bias, the last, as Hugging Face has it
    biases = (*dict(params.sequence_bias).items(), *(((token,), value) for token, value in params.logit_bias))
    rules = _always(
        bad_words=params.bad_words_ids,
        biases=biases,
        suppress_tokens=params.suppress_tokens,
        allowed_token_ids=params.allowed_token_ids,
        ends=ends,
    )
    if params.ends_beams:
        rules = PackedRules.joined((PackedRules.from_words(params.stop_words_ids, END), rules))
    return rules if rules.kinds else None


def _of_sequence(sequence: Sequence) -> list[PackedRules]:
    """Returns the rules that depend on a sequence's lengths and input."""
    params, prompt, parts = sequence.request.params, sequence.prompt_length, []
    if params.begin_suppress_tokens:
        # a forced first token comes before the first that is chosen
        place = prompt + (prompt == 1 and params.forced_bos_token_id is not None)
        parts.append(_at(place, params.begin_suppress_tokens, SUPPRESS))
    if isinstance(params.forced_eos_token_id, tuple):
        parts.append(_at(sequence.max_length - 1, params.forced_eos_token_id, FORCE))
    if params.encoder_repetition_penalty != 1.0 or params.encoder_no_repeat_ngram_size:
        parts += _of_input(params, _input_ids(sequence))
    return parts


@functools.lru_cache(maxsize=32)
def _always(
    *, bad_words: tuple, biases: tuple, suppress_tokens: tuple, allowed_token_ids: tuple, ends: tuple
) -> PackedRules:
    """Returns rules that hold at every place. A word that is an end token alone is not bad, as Hugging Face has it."""
    alone = {(end,) for end in ends}
    words = [word for word in bad_words if word not in alone]
    return PackedRules.joined((
        PackedRules.from_words([word for word, _ in biases], BIAS, [value for _, value in biases]),
        PackedRules.from_words(words, BAN),
        PackedRules.from_ngrams(suppress_tokens, SUPPRESS),
        PackedRules.from_ngrams(allowed_token_ids, ALLOW),
    ))  # fmt: skip


@functools.lru_cache(maxsize=64)
def _at(place: int, tokens: tuple[int, ...], kind: int) -> PackedRules:
    """Returns rules about tokens that hold at one place."""
    return PackedRules.from_ngrams(tokens, kind, place=place)


def _of_input(params: SamplingParams, ids: tuple[int, ...]) -> list[PackedRules]:
    parts, size = [], params.encoder_no_repeat_ngram_size
    if params.encoder_repetition_penalty != 1.0:
        parts.append(PackedRules.from_ngrams([*set(ids)], SEEN))
    if size:
        parts.append(PackedRules.from_ngrams(ids, BAN, size=size))
    return parts


def _input_ids(sequence: Sequence) -> tuple[int, ...]:
    """Returns the tokens that the model was given: the encoder's, or a decoder's prompt; none where it was given
    features."""
    request = sequence.request
    if request.encoder_input_ids is not None:
        return () if request.images or request.prompt_table else request.encoder_input_ids
    return () if sequence.num_features else tuple(sequence.history[: sequence.prompt_length])


class RuleTable:
    """The device's table of the rules of all slots, which grows as requests need it."""

    def __init__(self, padding_slot: int, device: torch.device):
        self.padding_slot, self.device = padding_slot, device
        self._by_slot: dict[int, PackedRules] = {}
        self._allocate(SMALLEST, SMALLEST)

    @property
    def capacity(self) -> tuple[int, int]:
        """Counts the rules and the tokens before them that there is room for; another one means other addresses."""
        return self._rules.shape[1], self._prefixes.shape[1]

    def admit(self, rules_by_slot: dict[int, PackedRules | None]) -> None:
        """Takes the rules of slots that are filled, in place of what their last requests said."""
        old = [slot for slot in rules_by_slot if self._by_slot.pop(slot, None) is not None]
        self._by_slot |= {slot: rules for slot, rules in rules_by_slot.items() if rules is not None}
        if old or any(rules_by_slot.values()):
            self._upload()

    def _upload(self) -> None:
        table = PackedRules.joined([PackedRules.from_words((), BAN), *self._by_slot.values()])
        counts = np.array([rules.rules.shape[1] for rules in self._by_slot.values()], np.int64)
        count, prefixes = table.rules.shape[1], table.prefixes.shape[1]
        if count > self.capacity[0] or prefixes > self.capacity[1]:
            self._allocate(_room(count, self.capacity[0]), _room(prefixes, self.capacity[1]))
        capacity = self.capacity
        rules = np.empty((7, capacity[0]), np.int32)
        rules[:] = np.array([self.padding_slot, -1, -1, -1, 0, 0, 0])[:, None]
        rules[0, :count] = np.repeat(np.fromiter(self._by_slot, np.int32), counts)
        rules[1:5, :count] = table.rules
        before = np.bincount(table.prefixes[0], minlength=count)
        rules[5, :count], rules[6, :count] = before.cumsum() - before, before
        rest = np.empty((3, capacity[1]), np.int32)
        rest[:] = np.array([capacity[0], 0, 0])[:, None]
        rest[:, :prefixes] = table.prefixes
        for target, source in zip((self._rules, self._prefixes), upload([rules, rest], self.device), strict=True):
            target.copy_(source)

    def _allocate(self, rules: int, prefixes: int) -> None:
        new = lambda rows, size: torch.zeros((rows, size), dtype=torch.int32, device=self.device)  # noqa: E731
        self._rules: Tensor = new(7, rules)
        self._prefixes: Tensor = new(3, prefixes)
        self._rules[0], self._rules[1:4], self._prefixes[0] = self.padding_slot, -1, rules
        slots, tokens, kinds, places, values, first_prefixes, num_prefixes = self._rules
        prefix_rules, prefix_backs, prefix_tokens = self._prefixes
        self.rules = TokenRules(
            slots=slots,
            tokens=tokens,
            kinds=kinds,
            places=places,
            values=values.view(torch.float32),
            first_prefixes=first_prefixes,
            num_prefixes=num_prefixes,
            prefix_rules=prefix_rules,
            prefix_backs=prefix_backs,
            prefix_tokens=prefix_tokens,
        )


def _room(count: int, there: int) -> int:
    return max(there, power_of_two(count) if count else 0)
