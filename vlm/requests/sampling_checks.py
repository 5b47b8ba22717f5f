"""Which values a request's settings may take together: one sentence says what was given and what is allowed."""

from __future__ import annotations

from vlm.errors import InputError
from vlm.options import check_each, check_limits
from vlm.requests.sampling_options import SamplingOptions


def check(params: SamplingOptions) -> None:
    """Raises InputError for the first value that is not allowed, by itself or beside the others."""
    check_limits(params)
    check_each(params)
    _check_lengths(params)
    _check_beams(params)


def _check_lengths(params: SamplingOptions) -> None:
    most = params.max_new_tokens
    if most is not None and params.min_new_tokens > most:
        raise InputError(
            f"min_new_tokens {params.min_new_tokens} is more than max_new_tokens {most}; lower it.",
            settings=("min_new_tokens", "max_new_tokens"),
        )


def _check_beams(params: SamplingOptions) -> None:
    if params.num_beams > 1 and params.temperature > 0:
        raise InputError(
            f"num_beams is {params.num_beams} and temperature {params.temperature:g}, which exclude each other: beam"
            " search does not sample; set num_beams to 1, or temperature to 0.",
            settings=("num_beams", "temperature"),
        )
    if params.num_return_sequences > params.num_beams and params.temperature == 0:
        raise InputError(
            f"num_return_sequences is {params.num_return_sequences}: give at least as many num_beams (now"
            f" {params.num_beams}), or a temperature, to get different outputs.",
            settings=("num_return_sequences", "num_beams"),
        )
    if params.num_beams > 1:
        _check_single(params)


def _check_single(params: SamplingOptions) -> None:
    """Raises InputError for what a beam search has not."""
    if params.stop:
        raise InputError(
            "stop strings are for single sequences: set num_beams to 1, or give tokens as stop_token_ids, which end"
            " beams, too.",
            settings=("stop", "num_beams", "stop_token_ids"),
        )
    if params.top_logprobs:
        raise InputError(
            "top_logprobs are for single sequences: set num_beams to 1.", settings=("top_logprobs", "num_beams")
        )
    if params.prompt_logprobs is not None:
        raise InputError(
            "prompt_logprobs are for single sequences: set num_beams to 1.", settings=("prompt_logprobs", "num_beams")
        )
    if params.return_context_logits or params.return_generation_logits:
        raise InputError(
            "context and generation logits are those of single sequences: set num_beams to 1.", settings=("num_beams",)
        )
    if params.loop_detection:
        raise InputError(
            "loop detection works on one sequence; switch it off for beam search.", settings=("loop_detection",)
        )
