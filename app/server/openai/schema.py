"""What OpenAI's clients send, and how it reads as options of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from vlm.limits import MAX_LOGIT_BIAS, MAX_STOP_IDS, MAX_TOP_LOGPROBS
from vlm_app.server.openai.fields import accepted, refusal

MAX_OUTPUTS, MAX_BEAMS = 64, 64  # a request
MAX_EMBEDDINGS = 2048  # a request, as OpenAI has it
LEAST_TOP_P = 1e-9  # clients say 0 for the likeliest alone

Int32 = Annotated[int, Field(ge=0, lt=2**31)]
Ids = Annotated[list[Int32], Field(max_length=MAX_STOP_IDS, fail_fast=True)]
Bias = Annotated[float, Field(ge=-MAX_LOGIT_BIAS, le=MAX_LOGIT_BIAS)]
Word = Annotated[str, Field(min_length=1, max_length=256)]


def _few_biases(given: Any) -> Any:
    """Refuses too many biases at once: each wrong one would be an error of its own."""
    if isinstance(given, dict) and len(given) > MAX_STOP_IDS:
        raise ValueError(f"logit_bias has {len(given):,} entries; give at most {MAX_STOP_IDS}.")
    return given


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        """Drops what has no meaning here, names what is not done."""
        return accepted(values, cls.model_fields, cls.neutral) if isinstance(values, dict) else values


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False  # vLLM's: in every chunk
    include_obfuscation: bool | None = False  # of lengths: there is none


class Sampling(Body):
    """What both ways to ask for text have. From `top_k` on they are vLLM's or ours, as `extra_body` of the client."""

    model: str
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None
    n: Annotated[int | None, Field(ge=1, le=MAX_OUTPUTS)] = None
    stop: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(max_length=16)] | None = None
    seed: int | None = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    logit_bias: Annotated[dict[Int32, Bias] | None, BeforeValidator(_few_biases)] = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    top_k: Annotated[int | None, Field(ge=-1, lt=2**31)] = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    repetition_penalty: Annotated[float | None, Field(gt=0, le=100)] = None
    no_repeat_ngram_size: Int32 | None = None
    min_tokens: Annotated[int | None, Field(ge=0, le=2**20)] = None
    stop_token_ids: Ids | None = None
    allowed_token_ids: Ids | None = None
    bad_words: Annotated[list[Word], Field(max_length=MAX_STOP_IDS, fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    num_beams: Annotated[int | None, Field(ge=1, le=MAX_BEAMS)] = None
    use_beam_search: bool | None = None
    best_of: Annotated[int | None, Field(ge=1, le=MAX_OUTPUTS)] = None
    length_penalty: Annotated[float | None, Field(ge=-100, le=100)] = None
    early_stopping: bool | Literal["never"] | None = None
    truncate_prompt_tokens: Annotated[int | None, Field(ge=-1, lt=2**31)] = None
    return_tokens_as_token_ids: bool | None = None
    request_id: Annotated[str | None, Field(pattern=r"^[\x21-\x7e]{1,128}$")] = None

    @model_validator(mode="after")
    def _best(self) -> Sampling:
        best = self.best_of or self.outputs
        if best < self.outputs:
            raise refusal("best_of", f"best_of is {best} and n is {self.n}; give at least as many.")
        if best > self.outputs and self.stream and not self.searches:
            raise refusal("best_of", f"best_of {best} of {self.outputs} is known at the end: it cannot be streamed.")
        return self

    @property
    def outputs(self) -> int:
        """Choices of each input."""
        return self.n or 1

    @property
    def searches(self) -> bool:
        """Says whether beams are searched."""
        return bool(self.use_beam_search) or (self.num_beams or 1) > 1

    @property
    def truncate(self) -> bool | int:
        """Returns the tokens that a prompt is cut to; True: as many as the engine takes."""
        return True if self.truncate_prompt_tokens == -1 else self.truncate_prompt_tokens or False

    def sampling(self) -> dict[str, Any]:
        """Options of a pipeline; what was not said is the model's own."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        said = {
            "max_new_tokens": self._max_new_tokens(),
            "temperature": self._temperature(),
            "top_p": None if self.top_p is None else max(self.top_p, LEAST_TOP_P),
            "top_k": None if self.top_k is None else max(self.top_k, 0),  # -1 is vLLM's: off
            "num_beams": self._beams(),
            "num_return_sequences": self.outputs if self.searches else max(self.outputs, self.best_of or 1),
            "stop": stop,
            "seed": None if self.seed is None else self.seed % 2**63,
            "top_logprobs": self._top_logprobs(),
            "min_new_tokens": self.min_tokens,
            "stop_token_ids": tuple(self.stop_token_ids or ()),
        }
        same = (
            "presence_penalty frequency_penalty min_p repetition_penalty no_repeat_ngram_size ignore_eos logit_bias"
            " allowed_token_ids bad_words include_stop_str_in_output skip_special_tokens length_penalty early_stopping"
        )
        said |= {name: getattr(self, name) for name in same.split()}
        return {name: value for name, value in said.items() if value is not None}

    def _beams(self) -> int | None:
        """vLLM's beam search is as wide as there are outputs, or candidates for them."""
        return max(self.outputs, self.best_of or 1) if self.use_beam_search and not self.num_beams else self.num_beams

    def _temperature(self) -> float | None:
        """Returns the temperature: several outputs are drawn, as OpenAI has it."""
        if self.temperature is not None:
            return self.temperature
        if self.use_beam_search:
            return 0.0
        return 1.0 if max(self.outputs, self.best_of or 1) > 1 and not self.searches else None

    def _max_new_tokens(self) -> int | None:
        return self.max_tokens

    def _top_logprobs(self) -> int:
        raise NotImplementedError


class ChatBody(Sampling):
    neutral = {"echo": (False,), "add_special_tokens": (False,)}

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_TOP_LOGPROBS)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise refusal("top_logprobs", "top_logprobs needs logprobs=true.")
        if self.continue_final_message and self.add_generation_prompt:
            raise refusal("continue_final_message", "continue_final_message needs add_generation_prompt=false.")
        if self.add_generation_prompt is False and not self.continue_final_message:
            raise refusal("add_generation_prompt", "add_generation_prompt=false needs continue_final_message=true.")
        return self

    def _max_new_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def _top_logprobs(self) -> int:
        return self.top_logprobs or 0


# the first wrong element says enough: a million of them would make as many errors
TokenIds = Annotated[list[Int32], Field(min_length=1, max_length=2**20, fail_fast=True)]
Texts = Annotated[list[str], Field(min_length=1, max_length=MAX_OUTPUTS, fail_fast=True)]
TokenLists = Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_OUTPUTS, fail_fast=True)]


class CompletionBody(Sampling):
    neutral = {"add_special_tokens": (True,)}

    prompt: str | Texts | TokenIds | TokenLists
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_TOP_LOGPROBS)] = None
    echo: bool | None = False

    @model_validator(mode="after")
    def _no_logprobs_of_prompts(self) -> CompletionBody:
        if self.echo and self.logprobs is not None:
            raise refusal("echo", "echo with logprobs is not supported: a prompt has none; leave one of them out.")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or several, each as text or as ids."""
        return _several(self.prompt)

    def _top_logprobs(self) -> int:
        return self.logprobs or 0


class EmbeddingBody(Body):
    neutral = {"add_special_tokens": (True,)}

    model: str
    input: (
        str
        | Annotated[list[str], Field(min_length=1, max_length=MAX_EMBEDDINGS, fail_fast=True)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_EMBEDDINGS, fail_fast=True)]
    )
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1)] = None
    truncate_prompt_tokens: Annotated[int | None, Field(ge=-1, lt=2**31)] = None

    truncate = Sampling.truncate

    @property
    def inputs(self) -> list[str | list[int]]:
        return _several(self.input)


def _several(given: str | list) -> list[str | list[int]]:
    return [given] if isinstance(given, str) or isinstance(given[0], int) else list(given)
