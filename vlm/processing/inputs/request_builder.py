"""What people give -> a Request: images and texts become pixels and token ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vlm.errors import InputError, listed
from vlm.executor.memory import memory_errors
from vlm.processing.chat.conversation import Conversation
from vlm.processing.inputs.context import InputContext
from vlm.processing.inputs.fields import InputFields
from vlm.processing.inputs.prompt_request import prompt_request
from vlm.processing.inputs.reader import named_fields, read_conversation, read_input
from vlm.processing.inputs.source_request import source_request, texts_as_given
from vlm.processing.text.stream import StopStrings
from vlm.requests.adapters import adapter_id
from vlm.requests.request import Request
from vlm.requests.sampling_params import SamplingParams


@dataclass(frozen=True)
class RequestBuilder:
    """Builds the requests of one engine. Used by several threads at once."""

    context: InputContext
    adapters: Mapping[str, int] = field(default_factory=dict)  # their numbers by their names

    @memory_errors()
    def build(self, source: Any, params: SamplingParams, lora: str | int | None = None) -> Request:
        """Returns the request of an input; `lora`: its adapter where it names none. Raises InputError and its kin with
        one sentence."""
        fields = read_input(source, self.context)
        if fields.lora is not None:
            lora = fields.lora
        request = self._request(fields, params)
        return request if lora is None else replace(request, adapter_id=adapter_id(lora, self.adapters))

    def together(self, sources: Iterable[Any]) -> RequestBuilder:
        """Returns what builds the same requests, and has read the texts of these inputs already."""
        context = self.context
        if context.tokenizer is None or not context.has_encoder or context.prompts is not None:
            return self
        tokenizer = context.tokenizer.together(texts_as_given(sources), context.max_encoder_len)
        return self if tokenizer is context.tokenizer else replace(self, context=replace(context, tokenizer=tokenizer))

    def read(self, source: Any) -> InputFields:
        """Reads an input. Raises InputError and LengthError as `read_input`."""
        return read_input(source, self.context)

    def named(self, source: Any) -> dict[str, Any]:
        """Returns the fields of an input by their names, as `named_fields`."""
        return named_fields(source, self.context)

    def completed(self, source: Any, fields: Mapping[str, Any]) -> Any:
        """Returns an input with the fields that a call gives beside it. Raises InputError for one that it has, too."""
        fields = {name: value for name, value in fields.items() if value is not None}
        if not fields:
            return source
        own = self.named(source)
        if both := [name for name in fields if name in own]:
            raise InputError(f"{listed(both)} was given in the input and beside it; give it once.")
        return own | fields

    def read_conversation(self, messages: Any) -> Conversation:
        """Reads messages. Raises InputError and LengthError as `read_conversation`."""
        return read_conversation(messages, self.context)

    def check_images(self, count: int) -> None:
        """Raises LengthError for more images than a request can hold, before any of them is read."""
        if self.context.prompts is not None:
            self.context.images.check_count(count, self.max_prompt_tokens)

    @property
    def takes_images(self) -> bool:
        return self.context.family.takes_images

    @property
    def max_prompt_tokens(self) -> int:
        """Returns the tokens that a prompt may have at most, whatever else a request asks for."""
        return self.context.max_tokens

    def with_tuned_rows(self, ids: list[int], task: str | int) -> list[int]:
        """Returns a prompt's ids with those of the rows that were tuned for a task before them. Raises InputError for
        an unknown one."""
        tuned = self.context.tuned_prompt(task)
        return ids if tuned is None else self.context.with_rows(ids, len(tuned.rows))

    def _request(self, fields: InputFields, params: SamplingParams) -> Request:
        context, stops = self.context, None
        params = self._without_bad_words(params) if params.bad_words else params
        if params.stop and context.tokenizer:
            view = context.tokenizer.showing(special_tokens=not params.skip_special_tokens)
            stops = StopStrings(view, params.stop)
        if context.prompts is None:
            return source_request(fields, context, params=params, stops=stops)
        return prompt_request(fields, context, context.prompts, params=params, stops=stops)

    def _without_bad_words(self, params: SamplingParams) -> SamplingParams:
        """Returns the settings with the tokens of their bad words, at the beginning of a text and after a space."""
        if self.context.tokenizer is None:
            raise InputError("this engine has no tokenizer; give bad_words_ids instead of bad_words.")
        forms = (form for word in params.bad_words for form in (word, f" {word.lstrip()}"))
        ids = [tuple(self.context.tokenizer.encode(form)) for form in forms]
        return replace(params, bad_words=(), bad_words_ids=tuple(dict.fromkeys((*params.bad_words_ids, *ids))))
