"""Token ids -> text."""

from __future__ import annotations

import copy
import functools
from typing import Self

from tokenizers import Tokenizer as FastTokenizer

from vlm.processing.text.clean_up import clean_up
from vlm.registry.tokenizer_rules import TokenizerRules


class Detokenizer:
    """Decodes as Hugging Face does, with what a family adds to it."""

    def __init__(self, target: FastTokenizer, rules: TokenizerRules, *, cleans_up: bool):
        """`cleans_up`: texts lose their blanks before signs."""
        self.splitter, self.cleans_up = rules.splitter, cleans_up
        self._target, self._skip_special, self._shown = target, True, rules.shown
        self._drops_half_characters = rules.drops_half_characters

    def showing(self, *, special_tokens: bool) -> Self:
        """Returns this tokenizer, or one that does not leave special tokens out of what it decodes."""
        if not special_tokens:
            return self
        other = copy.copy(self)
        other._skip_special = False
        return other

    def decode(self, token_ids: list[int]) -> str:
        """Decodes without special tokens."""
        text = self.decode_split(token_ids)
        text = self.splitter.join(text) if self.splitter else text
        return clean_up(text) if self.cleans_up else text

    def decode_split(self, token_ids: list[int]) -> str:
        """Returns the text as the model writes it: not cleaned up, its words and signs between blanks where a family
        joins them."""
        leaves_out_all = self._skip_special and not self._shown
        if self._skip_special and self._shown:
            token_ids = [i for i in token_ids if i not in self._left_out]
        text = self._target.decode(token_ids, skip_special_tokens=leaves_out_all)
        return text.replace("\ufffd", "") if self._drops_half_characters else text

    def piece(self, token_id: int, before: int | None = None) -> str:
        """Returns what a token adds to a text that ends in the token `before`; special tokens by their names."""
        if token_id in self._special:
            return self._target.id_to_token(token_id) or ""
        context = [] if before is None or before in self._special else [before]
        return self.decode_split([*context, token_id])[len(self.decode_split(context)) :]

    @functools.cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(i for i, token in self._target.get_added_tokens_decoder().items() if token.special)

    @functools.cached_property
    def _left_out(self) -> frozenset[int]:
        return frozenset(i for i in self._special if self._target.id_to_token(i) not in self._shown)
