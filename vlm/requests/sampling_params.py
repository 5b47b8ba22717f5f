"""How an output is chosen: the settings of a request, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vlm.options import converted, defaults_of
from vlm.requests.sampling_checks import check
from vlm.requests.sampling_options import SamplingOptions


@dataclass(frozen=True)
class SamplingParams(SamplingOptions):
    """The settings, checked. Lists, mappings and single strings are taken where the fields are tuples. Raises
    InputError for the first that is not allowed."""

    def __post_init__(self) -> None:
        defaults = defaults_of(type(self))
        given = {name: value for name, value in vars(self).items() if value is not defaults[name]}
        for name, value in converted(type(self), given).items():
            object.__setattr__(self, name, value)
        check(self)

    @cached_property
    def needs_processors(self) -> bool:
        """Says whether anything but temperature and the filters of a draw shapes the choice."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        lengths = self.min_new_tokens or self.min_length or self.exponential_decay_length_penalty
        return penalties != (1.0, 0.0, 0.0) or bool(
            self.no_repeat_ngram_size or lengths or self.names_tokens or self.remove_invalid_values
        )

    @cached_property
    def forced_tokens(self) -> frozenset[int]:
        """Returns the tokens that an output may be made to begin or end with."""
        return frozenset((*_given(self.forced_bos_token_id), *_given(self.forced_eos_token_id)))

    @cached_property
    def known_tokens(self) -> dict[str, tuple[int, ...]]:
        """Returns the tokens that must be in the vocabulary, by the settings that name them. To suppress one that is
        not changes nothing."""
        tokens = {
            "stop_token_ids": self.stop_token_ids,
            "bad_words_ids": tuple(token for word in self.bad_words_ids for token in word),
            "sequence_bias": tuple(token for word, _ in self.sequence_bias for token in word),
            "logit_bias": tuple(token for token, _ in self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids,
            "top_p_reset_id": _given(self.top_p_reset_id),
            "forced_bos_token_id": _given(self.forced_bos_token_id),
            "forced_eos_token_id": _given(self.forced_eos_token_id),
        }
        return {name: named for name, named in tokens.items() if named}

    @cached_property
    def returns_logits(self) -> bool:
        # those of the prompt's last token are the output's first
        return self.return_generation_logits or self.return_context_logits

    @cached_property
    def scores_prompt(self) -> bool:
        """Says whether every token of the prompt is computed: what is known of it has no logits."""
        return self.return_context_logits or self.prompt_logprobs is not None

    @cached_property
    def names_tokens(self) -> bool:
        """Says whether there are rules about certain tokens or sequences of them."""
        several_ends = isinstance(self.forced_eos_token_id, tuple)
        of_prompt = self.encoder_repetition_penalty != 1.0 or self.encoder_no_repeat_ngram_size
        tokens = self.bad_words_ids or self.suppress_tokens or self.begin_suppress_tokens or self.allowed_token_ids
        return bool(tokens or self.sequence_bias or self.logit_bias or several_ends or of_prompt)

    @cached_property
    def ends_beams(self) -> bool:
        """Says whether sequences of tokens end a beam; those of a single sequence are found by the host."""
        return self.num_beams > 1 and bool(self.stop_words_ids)

    @cached_property
    def rare(self) -> bool:
        """Says whether settings change the logits last of all."""
        return bool(self.exponential_decay_length_penalty or self.remove_invalid_values or self.renormalize_logits)

    @cached_property
    def filtered(self) -> bool:
        """Says whether a draw goes by entropy or by probabilities alone, after top-k, top-p and min-p."""
        return self.temperature > 0 and (
            self.typical_p < 1.0 or bool(self.epsilon_cutoff or self.eta_cutoff or self.top_h)
        )


def _given(token: int | tuple[int, ...] | None) -> tuple[int, ...]:
    """Returns the tokens of a setting that names none, one or several."""
    return token if isinstance(token, tuple) else () if token is None else (token,)


class SharedSettings:
    """The settings of several requests: those of one call are one object, of which each value is asked for once."""

    def __init__(self, params: list[SamplingParams]):
        self._each = [*map(id, params)]
        self._by_id = dict(zip(self._each, params, strict=True))
        self.distinct = [*self._by_id.values()]

    def any(self, says: Callable[[SamplingParams], object]) -> bool:
        return any(map(says, self.distinct))

    def each(self, value_of: Callable[[SamplingParams], Any]) -> list[Any]:
        """Returns a value a request."""
        values = {key: value_of(params) for key, params in self._by_id.items()}
        return [values[key] for key in self._each]
