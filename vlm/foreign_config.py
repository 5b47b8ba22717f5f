"""Reads a foreign model configuration strictly: every field is taken, checked, or known not to change inference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vlm.errors import ConfigError, listed

# of transformers' PretrainedConfig: bookkeeping, training, generation defaults (those come from generation_config.json)
BOOKKEEPING = frozenset(
    """_name_or_path _attn_implementation architectures auto_map bad_words_ids begin_suppress_tokens bos_token_id
    chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task
    forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_range init_std is_decoder
    is_encoder_decoder label2id length_penalty max_length min_length model_type no_repeat_ngram_size num_beam_groups
    num_beams num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix
    problem_type pruned_heads remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tie_word_embeddings
    tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p use_bfloat16 use_cache
    add_cross_attention""".split()
)


class ForeignConfig:
    """Collects what is wrong with a configuration and raises once."""

    def __init__(self, values: dict[str, Any], what: str):
        self.values, self.what = values, what
        self.seen: set[str] = set(BOOKKEEPING)
        self.wrong: list[str] = []

    def take(self, name: str, default: Any = None) -> Any:
        """A field's value; without a default the field must be there."""
        self.seen.add(name)
        value = self.values.get(name, default)
        if value is None and default is None and name not in self.values:
            self.wrong.append(f"{name} is missing")
        return value

    def allow(self, name: str, allowed: Iterable[Any], default: Any = None) -> Any:
        """A field that may only have certain values; absent, it has `default`."""
        self.seen.add(name)
        value = self.values.get(name, default)
        if value not in (choices := list(allowed)):
            self.wrong.append(f"{name} is {value!r}, supported is {listed(map(repr, choices))}")
        return value

    def ignore(self, *names: str) -> None:
        """Fields that do not change inference (dropout and its like)."""
        self.seen.update(names)

    def finish(self) -> None:
        """Raises ConfigError with every reason found, unknown fields included."""
        for name in sorted(set(self.values) - self.seen):
            self.wrong.append(f"{name} is unknown (set to {self.values[name]!r})")
        if self.wrong:
            raise ConfigError(f"this {self.what} configuration cannot be run exactly: {listed(self.wrong)}.")


def token_id(values: dict[str, Any], name: str, default: int) -> int:
    """A token id of a configuration; the first where it lists several."""
    value = values.get(name)
    if isinstance(value, list):
        value = value[0]
    return default if value is None else value
