"""What OpenAI's clients send, and how it reads as options of a pipeline."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vlm.limits import MAX_STOP_IDS, MAX_TOP_LOGPROBS

MAX_OUTPUTS, MAX_BEAMS = 64, 64  # a request
# said by clients, without a meaning here
IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key prompt_cache_retention verbosity"
    " reasoning_effort parallel_tool_calls".split()
)
# what would change the answer -> the value that asks for nothing
REFUSED = {
    "tools": [], "tool_choice": "none", "functions": [], "function_call": "none", "logit_bias": {}, "audio": None,
    "response_format": {"type": "text"}, "modalities": ["text"], "prediction": None, "web_search_options": None,
    "suffix": "", "best_of": 1,
}  # fmt: skip

Int32 = Annotated[int, Field(ge=0, lt=2**31)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        """Drops what has no meaning here, names what is not done."""
        if not isinstance(values, dict):
            return values
        for name, neutral in REFUSED.items():
            if name in values and values[name] not in (None, neutral):
                raise ValueError(f"{name} is not supported; leave it out.")
        return {k: v for k, v in values.items() if k not in IGNORED and k not in REFUSED}


class StreamOptions(BaseModel):
    include_usage: bool = False
    include_obfuscation: bool = False  # of lengths: there is none


class Sampling(Body):
    """What both ways to ask for text have. The last ones are ours, as `extra_body` of the client."""

    model: str
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    n: Annotated[int | None, Field(ge=1, le=MAX_OUTPUTS)] = None
    stop: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(max_length=16)] | None = None
    seed: int | None = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    top_k: Int32 | None = None
    min_p: Annotated[float | None, Field(ge=0, le=1)] = None
    repetition_penalty: Annotated[float | None, Field(gt=0, le=100)] = None
    no_repeat_ngram_size: Int32 | None = None
    min_tokens: Annotated[int | None, Field(ge=0, le=2**20)] = None
    stop_token_ids: Annotated[list[Int32] | None, Field(max_length=MAX_STOP_IDS)] = None
    ignore_eos: bool | None = None
    num_beams: Annotated[int | None, Field(ge=1, le=MAX_BEAMS)] = None
    length_penalty: Annotated[float | None, Field(ge=-100, le=100)] = None

    @property
    def usage_wanted(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self) -> dict[str, Any]:
        """Options of a pipeline; what was not said is the model's own."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        several = (self.n or 1) > 1 and (self.num_beams or 1) == 1
        said = {
            "max_new_tokens": self._max_new_tokens(),
            "temperature": 1.0 if self.temperature is None and several else self.temperature,
            "num_return_sequences": self.n or 1,
            "stop": stop,
            "seed": None if self.seed is None else self.seed % 2**63,
            "top_logprobs": self._top_logprobs(),
            "min_new_tokens": self.min_tokens,
            "stop_token_ids": tuple(self.stop_token_ids or ()),
        }
        same = (
            "top_p presence_penalty frequency_penalty top_k min_p repetition_penalty no_repeat_ngram_size ignore_eos"
            " num_beams length_penalty"
        )
        said |= {name: getattr(self, name) for name in same.split()}
        return {name: value for name, value in said.items() if value is not None}

    def _max_new_tokens(self) -> int | None:
        return self.max_tokens

    def _top_logprobs(self) -> int:
        raise NotImplementedError


class ChatBody(Sampling):
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_TOP_LOGPROBS)] = None

    @model_validator(mode="after")
    def _consistent(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs=true.")
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
    prompt: str | Texts | TokenIds | TokenLists
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_TOP_LOGPROBS)] = None
    echo: bool | None = False

    @model_validator(mode="after")
    def _no_echo(self) -> CompletionBody:
        if self.echo:
            raise ValueError("echo is not supported; leave it out.")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or several, each as text or as ids."""
        single = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        return [self.prompt] if single else list(self.prompt)

    def _top_logprobs(self) -> int:
        return self.logprobs or 0


class EmbeddingBody(Body):
    model: str
    input: str | Texts | TokenIds | TokenLists
    encoding_format: Annotated[str, Field(pattern="^(float|base64)$")] = "float"
    dimensions: None = None

    @property
    def inputs(self) -> list[str | list[int]]:
        single = isinstance(self.input, str) or isinstance(self.input[0], int)
        return [self.input] if single else list(self.input)
