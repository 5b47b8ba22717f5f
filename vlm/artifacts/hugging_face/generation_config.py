"""What a Hugging Face folder says about generation: generation_config.json alone where it exists, else config.json.

As transformers' `GenerationConfig.from_pretrained` and `from_model_config` have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlm.errors import ConfigError, shown

# what transformers' GenerationConfig reads and what may change the tokens; its other fields are about caches, speed
# and what `generate` returns
FIELDS = frozenset(
    """assistant_early_exit bad_words_ids begin_suppress_tokens bos_token_id constraints decoder_start_token_id
    diversity_penalty do_sample dola_layers early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty
    eos_token_id epsilon_cutoff eta_cutoff exponential_decay_length_penalty force_words_ids forced_bos_token_id
    forced_eos_token_id guidance_scale length_penalty max_length max_new_tokens max_time min_length min_new_tokens
    min_p no_repeat_ngram_size num_beam_groups num_beams num_return_sequences pad_token_id penalty_alpha
    remove_invalid_values renormalize_logits repetition_penalty sequence_bias stop_strings suppress_tokens temperature
    token_healing top_h top_k top_p typical_p watermarking_config""".split()
)
TOKEN_IDS = tuple(sorted(name for name in FIELDS if name.endswith("_token_id")))
NESTED = ("decoder", "generator", "text_config")  # the first that is there speaks where the outer one does not


def generation_defaults(config: dict[str, Any], generation: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns the settings of a generation_config.json where there is one, else those of a config.json."""
    if generation is not None:
        return _legacy(generation) if generation.get("_from_model_config") else _known(generation)
    inner = next((config[name] for name in NESTED if config.get(name)), None)
    return (_known(inner) if isinstance(inner, dict) else {}) | _legacy(config)


def standing_alone(defaults: dict[str, Any]) -> dict[str, Any]:
    """Returns the same with the tokens that begin and end an output said outright, None where the folder names none:
    the classes' own defaults are not asked."""
    start = defaults.get("decoder_start_token_id")
    start = defaults.get("bos_token_id") if start is None else start
    if isinstance(start, list):  # one for each input of a batch
        start = start[0] if start else None
    first = defaults.get("forced_bos_token_id")
    forced = {"forced_bos_token_id": first[0]} if isinstance(first, list) and len(first) == 1 else {}
    return defaults | {"eos_token_id": defaults.get("eos_token_id"), "decoder_start_token_id": start, **forced}


def is_token_id(value: Any) -> bool:
    """Says whether a value may name a token: ids have 32 bits, and -1 stands for none."""
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < 2**31


def check_token_ids(name: str, value: Any) -> None:
    """Raises ConfigError for a setting that is no token's id, nor a list of them, nor none."""
    if value is not None and not all(map(is_token_id, value if isinstance(value, list) else [value])):
        raise ConfigError(
            f"the configuration's {name} is {shown(value)}; it must be a token's id or a list of them:"
            " fetch the model again."
        )


def check_tokens(settings: Mapping[str, Any]) -> None:
    """Raises ConfigError for settings of which one that names tokens names none."""
    for name in TOKEN_IDS:
        check_token_ids(name, settings.get(name))


def _known(values: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that are read; ConfigError for tokens that are none."""
    check_tokens(values)
    return {name: value for name, value in values.items() if name in FIELDS and value is not None}


def _legacy(values: dict[str, Any]) -> dict[str, Any]:
    """Reads settings of a config.json, too: early BART ones force their first token by a name of its own."""
    settings = _known(values)
    if values.get("force_bos_token_to_be_generated") and "bos_token_id" in settings:
        settings["forced_bos_token_id"] = settings["bos_token_id"]
    return settings
