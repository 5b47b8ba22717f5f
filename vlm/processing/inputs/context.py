"""What the inputs of one engine are read with, and how much they may hold."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vlm.artifacts.prompt_tables import PromptTables, TunedPrompt
from vlm.config import ModelConfig
from vlm.errors import InputError, built_for
from vlm.processing.chat.conversation import PLACEHOLDER
from vlm.processing.chat.prompts import Prompts
from vlm.processing.inputs.fields import InputFields, check_text
from vlm.processing.inputs.images import ImageInputs
from vlm.processing.text.tokenization import Tokenizer
from vlm.registry.spec import FamilySpec
from vlm.registry.tokenizer_rules import Languages
from vlm.requests.prompt_table import PromptTable
from vlm.requests.sampling_params import SamplingParams


@dataclass(frozen=True)
class InputContext:
    """Holds what every step from an input to its request may ask of an engine: what reads it, and its limits."""

    family: FamilySpec
    config: ModelConfig  # the decoder's, or that of an encoder alone
    generation: Mapping[str, Any]  # the model's own settings
    tokenizer: Tokenizer | None
    images: ImageInputs
    prompts: Prompts | None  # of a family that is asked in words
    has_encoder: bool  # of tokens
    vocab_size: int  # of the ids that a text becomes
    max_encoder_len: int
    max_seq_len: int
    prompt_tables: PromptTables | None = None  # of tasks that inputs may name
    encoder_positions: int | None = None  # that the encoder of tokens has; None: as many as it is built for

    @cached_property
    def max_tokens(self) -> int:
        """Returns the tokens that a text may have at most, whatever else a request asks for."""
        return self.max_encoder_len if self.has_encoder else self.max_seq_len

    def shorter_or_longer(self, length: int) -> str:
        """Returns what helps where a text has so many tokens, too many for the encoder."""
        longer = built_for("max_encoder_input_len", length, self.encoder_positions)
        return ", ".join(filter(None, ("cut it with truncate", longer)))

    @cached_property
    def languages(self) -> Languages | None:
        """Returns the languages that a tokenizer has codes for, if it has."""
        return self.tokenizer.languages if self.tokenizer else None

    @cached_property
    def _start(self) -> tuple[int, ...]:
        """Returns the model's start token."""
        token = self.generation.get("decoder_start_token_id")
        return (self.config.decoder_start_token_id if token is None else token,)

    def start_of(self, fields: InputFields) -> tuple[int, ...]:
        """Returns the tokens that a decoder begins with: those that its input names, or its start token."""
        ids = fields.decoder_prompt_token_ids
        return self._start if ids is None else tuple(ids)

    def prompt_ids(self, fields: InputFields) -> Items[int]:
        """Returns the token ids that an input has in place of a text; none where it has a text."""
        return (fields.encoder_input_ids if self.has_encoder else fields.decoder_prompt_token_ids) or ()

    def prompt_limit(self, params: SamplingParams) -> int:
        """Returns how many tokens a prompt may have: an encoder's, or what a decoder holds apart from the new ones."""
        if self.has_encoder:
            return self.max_encoder_len
        new = params.max_new_tokens or params.default_max_new_tokens or params.min_new_tokens
        return max(1, self.max_seq_len - max(1, new))

    def rows_of(self, table: PromptTable | None) -> range:
        """Returns the ids of a prompt table's rows, which go before a text."""
        return range(self.vocab_size, self.vocab_size + (0 if table is None else len(table)))

    def with_rows(self, ids: list[int], count: int) -> list[int]:
        """Returns a prompt's ids with those of a prompt table's rows before them, unless some among them say already
        where rows stand."""
        first = self.vocab_size
        return ids if max(ids, default=0) >= first else [*range(first, first + count), *ids]

    def bounded(self, text: str) -> str:
        """Raises LengthError for a text of too many tokens, told before it is tokenized; images stand where it says
        so."""
        if self.tokenizer is not None:
            self.tokenizer.check_length(text.replace(PLACEHOLDER, ""), self.max_tokens)
        return text

    def suffix(self, fields: InputFields) -> str:
        """Returns what goes after a text: what is asked for, then what the text was tuned with."""
        check_text("suffix", fields.suffix)
        suffix, tuned = self.bounded(fields.suffix or ""), fields.prompt_table
        if not isinstance(tuned, TunedPrompt):
            return suffix
        adds_end = self.tokenizer is not None and self.config.eos_token_id in self.tokenizer.ends[1]
        end = self.tokenizer.eos_token if tuned.ends and self.tokenizer is not None and not adds_end else ""
        return f"{suffix}{tuned.suffix}{end}"

    def tuned_prompt(self, task: str | int) -> TunedPrompt | None:
        """Returns what was tuned for a task of this name or number; None for -1. Raises InputError for an unknown
        one."""
        if task == -1:
            return None
        if self.prompt_tables is None:
            raise InputError(
                f"{self.family.name} has no tasks of its own, and no tuned prompts are loaded; load the model with"
                " prompt_table.",
                settings=("task", "prompt_table"),
            )
        if (tuned := self.prompt_tables.find(task)) is None:
            said = f"there is no task {task!r}; there are {self.prompt_tables.known}, and -1: none."
            raise InputError(said, settings=("task",))
        return tuned
