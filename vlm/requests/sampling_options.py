"""The settings of a request, under the names that Hugging Face and OpenAI give them: a field each, with all that the
command line, the servers' requests, generation_config.json and the docs need to know of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from vlm.limits import MAX_TOP_LOGPROBS
from vlm.options import Offer, option
from vlm.ranges import Choice, Range, at_least, between, count, positive, share
from vlm.requests import sampling_values as values

MODELS = "the model's"  # what a model's generation_config.json may set
MAX_OUTPUTS, MAX_BEAMS = 64, 64  # of a server's request
LEAST_TOP_P = 1e-9  # OpenAI's clients say 0 for the likeliest alone
FACTOR = positive("it must be positive, 1 is none")
IDS = Range(0, 2**31, high_open=True)  # of tokens, as servers take them


def setting(section: str, value: Any, help: str, **more: Any) -> Any:
    """Returns a field that is an option of a section; where the model may set it, it says so."""
    return option(value, help, section=section, **({"default": MODELS} if more.get("model_key") else {}) | more)


length = partial(setting, "Length")
draw = partial(setting, "Drawing")
penalty = partial(setting, "Penalties")
token = partial(setting, "Tokens that may come")
end = partial(setting, "Ends")
beam = partial(setting, "Beams and several outputs")
output = partial(setting, "What is returned")


@dataclass(frozen=True)
class SamplingOptions:
    """Temperature 0 is greedy. The defaults switch every filter and penalty off; they are applied in Hugging Face's
    order, whose names and meanings they have (`vlm.ops.sampling.logits_processors`, then `vlm.ops.sampling.sample`)."""

    max_new_tokens: int | None = length(
        None, "Tokens to generate at most.", default=f"{MODELS}, or as many as the engine holds",
        allowed=at_least(1), openai=Offer("max_tokens"), kserve=Offer("max_output_len"),
    )  # fmt: skip
    max_length: int | None = length(
        None, "The same with the prompt's; --max-new-tokens comes before it.", model_key="max_length",
        allowed=at_least(1),
    )  # fmt: skip
    default_max_new_tokens: int | None = length(
        None, "A model's own limit: so many, or as many as the engine holds.", cli=False, model_key="max_new_tokens",
        allowed=at_least(1),
    )  # fmt: skip
    temperature: float = draw(
        0.0, "0 is greedy; above it tokens are drawn at random.", default=f"{MODELS}, or 0",
        allowed=Range(0, high_open=True, words="it must be 0 (greedy) or a positive number"),
        openai=Offer(allowed=Range(0, 2)), kserve=Offer(), model_key="temperature", drawn=True,
    )  # fmt: skip
    top_k: int = draw(
        0, "Draw from the k likeliest; 0: all.", default=f"{MODELS}, or 0", allowed=count(31),
        openai=Offer(allowed=Range(-1, 2**31, high_open=True), read=lambda k: max(k, 0)),  # -1 is vLLM's: off
        kserve=Offer("runtime_top_k"), model_key="top_k", drawn=True, only_with="temperature",
    )  # fmt: skip
    top_p: float = draw(
        1.0, "Draw from the likeliest that make up p.", default=f"{MODELS}, or 1", allowed=share(),
        openai=Offer(allowed=Range(0, 1), read=lambda p: max(p, LEAST_TOP_P)),
        kserve=Offer("runtime_top_p"), model_key="top_p", drawn=True, only_with="temperature",
    )  # fmt: skip
    min_p: float = draw(
        0.0, "Draw from those of at least p times the likeliest's chance.", allowed=between(0, 1),
        openai=Offer(), model_key="min_p", drawn=True, only_with="temperature",
    )  # fmt: skip
    top_h: float = draw(
        0.0, "Draw from the likeliest that make up this part of the entropy; 0: all.",
        allowed=between(0, 1, "0 is off"), model_key="top_h", drawn=True, only_with="temperature",
    )  # fmt: skip
    typical_p: float = draw(
        1.0, "Draw from those of about the expected surprise that make up p.", allowed=share(),
        model_key="typical_p", drawn=True, only_with="temperature",
    )  # fmt: skip
    epsilon_cutoff: float = draw(
        0.0, "Draw from those of at least this chance.", allowed=between(0, 1, "0 is off"),
        model_key="epsilon_cutoff", drawn=True, only_with="temperature",
    )  # fmt: skip
    eta_cutoff: float = draw(
        0.0, "The same, less where the next token is uncertain.", allowed=between(0, 1, "0 is off"),
        model_key="eta_cutoff", drawn=True, only_with="temperature",
    )  # fmt: skip
    repetition_penalty: float = penalty(
        1.0, "Above 1: tokens that stand there already count less.", allowed=FACTOR,
        openai=Offer(allowed=Range(0, 100, low_open=True)), kserve=Offer(), model_key="repetition_penalty",
    )  # fmt: skip
    presence_penalty: float = penalty(
        0.0, "Taken off what the output holds.", allowed=between(-100, 100, "0 is none"),
        openai=Offer(allowed=Range(-2, 2)), kserve=Offer(),
    )  # fmt: skip
    frequency_penalty: float = penalty(
        0.0, "Taken off for each time that the output holds it.", allowed=between(-100, 100, "0 is none"),
        openai=Offer(allowed=Range(-2, 2)), kserve=Offer(),
    )  # fmt: skip
    no_repeat_ngram_size: int = penalty(
        0, "No n tokens in a row come twice.", allowed=count(30), openai=Offer(allowed=IDS),
        model_key="no_repeat_ngram_size",
    )  # fmt: skip
    encoder_repetition_penalty: float = penalty(
        1.0, "Above 1: the input's tokens count more, of a decoder its prompt's.", allowed=FACTOR,
        model_key="encoder_repetition_penalty",
    )  # fmt: skip
    encoder_no_repeat_ngram_size: int = penalty(
        0, "No n tokens in a row of the input come.", allowed=count(30), model_key="encoder_no_repeat_ngram_size"
    )
    bad_words: tuple[str, ...] = token(
        (), "A word or string that is not written, with a space before it or not.", check=values.check_bad_words,
        openai=Offer(),
    )  # fmt: skip
    bad_words_ids: tuple[tuple[int, ...], ...] = token(
        (), "The tokens of each such word.", cli=False, check=values.check_bad_words_ids, model_key="bad_words_ids"
    )
    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = token(
        (), "Added to the logit of the last token of a sequence after the others.", cli=False,
        check=values.check_sequence_bias, convert=values.to_sequence_bias, model_key="sequence_bias",
    )  # fmt: skip
    logit_bias: tuple[tuple[int, float], ...] = token(
        (), "Added to the logits of these token ids, -100 to 100: 13=-100,20=2.5.", read=values.read_logit_bias,
        check=values.check_logit_bias, convert=values.to_logit_bias, openai=Offer(),
    )  # fmt: skip
    allowed_token_ids: tuple[int, ...] = token((), "The id of a token that may come; no others do.", openai=Offer())
    suppress_tokens: tuple[int, ...] = token(
        (), "The id of a token that never comes.", check=values.check_ids, model_key="suppress_tokens"
    )
    begin_suppress_tokens: tuple[int, ...] = token(
        (), "The id of one that does not come first.", check=values.check_ids, model_key="begin_suppress_tokens"
    )
    exponential_decay_length_penalty: tuple[int, float] | None = length(
        None, "(n, factor): after n tokens ends get likelier by the factor with each one.", cli=False,
        check=values.check_length_decay, model_key="exponential_decay_length_penalty",
    )  # fmt: skip
    remove_invalid_values: bool = token(
        False, "NaN and infinite logits become finite.", cli=False, model_key="remove_invalid_values"
    )
    renormalize_logits: bool = beam(
        False, "Of beams: chances add up to 1 again after penalties and prohibitions.", model_key="renormalize_logits",
        only_with="num_beams",
    )  # fmt: skip
    min_new_tokens: int = length(
        0, "No end before so many.", allowed=count(30), openai=Offer("min_tokens", Range(0, 2**20)),
        kserve=Offer("min_length"), model_key="min_new_tokens",
    )  # fmt: skip
    min_length: int = length(
        0, "The same with the prompt's; --min-new-tokens comes before it.", allowed=count(30), model_key="min_length"
    )
    seed: int | None = draw(
        None, "Makes drawing repeatable.", default="drawn at random", allowed=count(63),
        openai=Offer(allowed=Range(), read=values.to_seed), kserve=Offer("random_seed", read=values.to_seed),
    )  # fmt: skip
    top_p_decay: float = draw(
        1.0, "With each token --top-p shrinks by this factor (factual nucleus).", allowed=share(), kserve=Offer(),
        only_with="temperature",
    )  # fmt: skip
    top_p_min: float = draw(
        0.0, "… to no less than this,", allowed=between(0, 1), kserve=Offer(), only_with="temperature"
    )
    top_p_reset_id: int | None = draw(
        None, "… and is as at the start after the token of this id.", kserve=Offer("top_p_reset_ids"),
        only_with="temperature",
    )  # fmt: skip
    stop_token_ids: tuple[int, ...] = end((), "The id of a token that ends the output.", openai=Offer())
    stop: tuple[str, ...] = end(
        (), "A string that ends the output and is left out of its text.", check=values.check_stop,
        convert=values.to_strings, openai=Offer(read=values.to_strings), model_key="stop_strings", default=None,
    )  # fmt: skip
    include_stop_str_in_output: bool = end(False, "Leave the string of --stop in the text.", openai=Offer())
    skip_special_tokens: bool = output(
        True, "Leave the end token and its kin out of the text.", cli=False, openai=Offer()
    )
    stop_words_ids: tuple[tuple[int, ...], ...] = end(
        (), "Sequences of tokens that end the output.", cli=False, check=values.check_stop_ids
    )
    top_logprobs: int = output(
        0, "Log-probabilities of so many likeliest tokens at each place, in JSON.",
        allowed=between(0, MAX_TOP_LOGPROBS), openai=Offer(completions="logprobs"),
    )  # fmt: skip
    prompt_logprobs: int | None = output(
        None, "Log-probabilities of each token of a decoder's prompt, and of so many likeliest ones, in JSON.",
        default="none", allowed=between(0, MAX_TOP_LOGPROBS), openai=Offer(),
    )  # fmt: skip
    return_context_logits: bool = output(False, "The logits of every token of a decoder's prompt.", cli=False)
    return_generation_logits: bool = output(
        False, "The logits that each token was chosen from, before penalties and prohibitions.", cli=False
    )
    forced_bos_token_id: int | None = token(
        None, "The id of the output's first token (mBART-50: the target's language).", model_key="forced_bos_token_id"
    )
    forced_eos_token_id: int | tuple[int, ...] | None = token(
        None, "The id of the last one, at full length; several, of which one must come: 2,5.", read=values.read_ids,
        convert=values.to_ends, model_key="forced_eos_token_id",
    )  # fmt: skip
    ignore_eos: bool = end(False, "Go on after the end token, up to the full length.", openai=Offer())
    prompt_lookup_num_tokens: int | None = setting(
        "Drafts", None, "Tokens that prompt lookup proposes for this output in a decode step, at most; it changes none"
        " of them. 0: none.",
        default="--num-speculative-tokens", allowed=count(31), openai=Offer(), kserve=Offer(),
    )  # fmt: skip
    num_beams: int = beam(
        1, "Above 1: beam search of this width.", allowed=at_least(1), openai=Offer(allowed=Range(1, MAX_BEAMS)),
        kserve=Offer("beam_width"), model_key="num_beams",
    )  # fmt: skip
    num_return_sequences: int = beam(
        1, "Outputs of each input: the best beams, or so many samples.", allowed=at_least(1),
        openai=Offer("n", Range(1, MAX_OUTPUTS)), model_key="num_return_sequences",
    )  # fmt: skip
    length_penalty: float = beam(  # beams are ranked by sum of log-probabilities / length ** length_penalty
        1.0, "Of beams: above 0 favours long outputs.", allowed=between(-100, 100), openai=Offer(),
        kserve=Offer("len_penalty"), model_key="length_penalty", only_with="num_beams",
    )  # fmt: skip
    early_stopping: bool | str = beam(
        False, "Of beams: true ends with as many outcomes as beams, false when none is likely to do better, never when"
        " none can.", allowed=Choice((False, True, "never"), "it must be False, True or 'never'"),
        read=values.read_early_stopping, openai=Offer(), kserve=Offer(), model_key="early_stopping",
        only_with="num_beams",
    )  # fmt: skip
    diversity_rate: float = beam(
        0.0, "Each rank among the continuations of one beam costs so much.", flags=("--beam-search-diversity-rate",),
        allowed=between(0, 100), kserve=Offer("beam_search_diversity_rate"), only_with="num_beams",
    )  # fmt: skip
    loop_detection: bool = end(
        False, "End an output that repeats itself without an end.", cli=False, default="the family's, without beams"
    )
