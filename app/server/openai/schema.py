"""What OpenAI's clients send, and how it reads as options of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from vlm.requests.sampling_options import MAX_OUTPUTS
from vlm_app.server.openai.fields import accepted, no_others, refusal, with_xargs
from vlm_app.server.openai.inputs import Embedded, Prompts, several
from vlm_app.server.openai.sampling_fields import body_fields, no_truth, settings_of


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        """Drops what has no meaning here, names what is not done."""
        return accepted(with_xargs(values), cls.model_fields, cls.neutral) if isinstance(values, dict) else values


class StreamOptions(BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False  # vLLM's: in every chunk
    include_obfuscation: bool | None = False  # of lengths: there is none

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        """Names a field that would be ignored."""
        return no_others("stream_options", values, cls.model_fields) if isinstance(values, dict) else values


class Named(Body):
    """What a request is asked of: a model, or an adapter of one; and in fields of ours a task, of the model's own or
    one that it has tuned prompts for, by name or number, and the question of a task that answers one."""

    model: str
    task: Annotated[str, Field(max_length=256)] | Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    question: Annotated[str | None, Field(max_length=2**16)] = None

    @property
    def of_inputs(self) -> dict[str, Any]:
        """Returns what each input has beside its words."""
        told = {"task": self.task, "question": self.question}
        return {name: value for name, value in told.items() if value is not None}


class Sampling(Named):
    """What both ways to ask for text have, beside the fields of sampling settings (`body_fields`). Many are vLLM's or
    ours, as `extra_body` of the client."""

    completions: ClassVar[bool]  # is it the route of that name?

    stream: bool | None = False
    stream_options: StreamOptions | None = None
    use_beam_search: bool | None = None
    best_of: Annotated[int | None, Field(ge=1, le=MAX_OUTPUTS)] = None
    truncate_prompt_tokens: Annotated[int | None, Field(ge=-1, lt=2**31)] = None
    return_tokens_as_token_ids: bool | None = None
    request_id: Annotated[str | None, Field(pattern=r"^[\x21-\x7e]{1,128}$")] = None

    if TYPE_CHECKING:  # made of the settings
        prompt_logprobs: int | None
        n: int | None
        num_beams: int | None
        logprobs: Any
        top_logprobs: int | None

    @model_validator(mode="after")
    def _whole_prompts(self) -> Sampling:
        if self.stream and self.prompt_logprobs is not None:
            said = "prompt_logprobs are not streamed; leave stream out, or ask /v1/completions for echo with logprobs."
            raise refusal("prompt_logprobs", said)
        return self

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
        """Returns the options of a pipeline; what was not said is the model's own."""
        candidates = max(self.outputs, self.best_of or 1)
        settings = settings_of(self, self.completions)
        if self.use_beam_search:  # vLLM's is as wide as there are outputs, or candidates for them
            settings = {"num_beams": candidates, "temperature": 0.0} | settings
        elif candidates > 1 and not self.searches:
            settings = {"temperature": 1.0} | settings  # several outputs are drawn, as OpenAI has it
        return settings | {"num_return_sequences": self.outputs if self.searches else candidates}


class ChatBody(create_model("ChatSampling", __base__=Sampling, **body_fields(completions=False))):
    completions = False
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"echo": (False,), "add_special_tokens": (False,)}
    if TYPE_CHECKING:  # one of the fields that are made of the settings
        top_logprobs: int | None

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool | None = None
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

    def sampling(self) -> dict[str, Any]:
        """Returns the options of a pipeline: max_completion_tokens is the later name of max_tokens."""
        most = self.max_completion_tokens
        return super().sampling() | ({} if most is None else {"max_new_tokens": most})


class CompletionBody(create_model("CompletionSampling", __base__=Sampling, **body_fields(completions=True))):
    completions = True
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_special_tokens": (True,)}
    if TYPE_CHECKING:  # one of the fields that are made of the settings
        logprobs: int | None

    prompt: Prompts
    echo: bool | None = False
    max_tokens: Annotated[int | None, Field(ge=0), BeforeValidator(no_truth)] = None

    @model_validator(mode="after")
    def _echoes_at_least(self) -> CompletionBody:
        if self.max_tokens == 0 and not self.echo:
            raise refusal("max_tokens", "max_tokens 0 gives nothing without echo=true; give at least 1.")
        return self

    @property
    def echoes_alone(self) -> bool:
        """Says whether nothing is asked for but the prompt, with what is said of it."""
        return self.max_tokens == 0

    @property
    def scores_prompt(self) -> bool:
        """Says whether log-probabilities are those of the prompt's tokens, too."""
        return bool(self.echo) and self.logprobs is not None

    def sampling(self) -> dict[str, Any]:
        """Returns the options of a pipeline, in which an output has a token: it comes of what scores the prompt."""
        scored = {"prompt_logprobs": max(self.logprobs or 0, self.prompt_logprobs or 0)} if self.scores_prompt else {}
        return super().sampling() | scored | ({"max_new_tokens": 1} if self.echoes_alone else {})

    @property
    def prompts(self) -> list[str | list[int]]:
        """Returns one or several, each as text or as ids."""
        return several(self.prompt)


class EmbeddingBody(Named):
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"add_special_tokens": (True,)}
    if TYPE_CHECKING:  # one of the fields that are made of the settings
        logprobs: int | None

    input: Embedded
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int | None, Field(ge=1)] = None
    truncate_prompt_tokens: Annotated[int | None, Field(ge=-1, lt=2**31)] = None

    truncate = Sampling.truncate

    @property
    def inputs(self) -> list[str | list[int]]:
        return several(self.input)
