"""OpenAI's protocol: /v1/chat/completions, /v1/completions, /v1/models."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vlm.api.async_pipeline import TextDelta
from vlm.api.outputs import Output
from vlm.errors import InputError, LimitError
from vlm.limits import MAX_LOGPROBS
from vlm.requests.token_update import ScoredPrompt
from vlm_app.server.core.generation_input import GenerationInput
from vlm_app.server.core.messages import read_chat, verbatim
from vlm_app.server.http.event_stream import event_stream
from vlm_app.server.http.json_bodies import JsonRoute
from vlm_app.server.http.limits import cancel_on_disconnect
from vlm_app.server.openai.answers import Answer, DeltaLogprobs, LogProbs, joined, named_scores
from vlm_app.server.openai.schema import ChatBody, CompletionBody, Sampling, StreamOptions
from vlm_app.server.repository.service import Service, services_of

router = APIRouter(prefix="/v1", route_class=JsonRoute)


@router.post("/chat/completions")
async def chat(body: ChatBody, http: Request) -> Response:
    """A conversation's next turn."""
    service, adapter = services_of(http).asked(body.model)
    how = {"continue_final": bool(body.continue_final_message), "truncate": body.truncate}
    source, files = await asyncio.to_thread(read_chat, service.pipeline, body.messages, **how)
    if source.keys() & body.of_inputs.keys():
        raise InputError("the question was given in the message and besides it; give it once.", settings=("question",))
    item = GenerationInput(source | body.of_inputs, files, body.sampling() | adapter)
    texts = Texts(service, [item], _answer(body, "chat.completion"))
    texts.wants_logprobs = bool(body.logprobs)
    return await _answered(http, body, texts)


@router.post("/completions")
async def completions(body: CompletionBody, http: Request) -> Response:
    """What prompts are gone on with, or made of texts."""
    service, adapter = services_of(http).asked(body.model)
    sampling = body.sampling() | adapter
    items = [
        GenerationInput(verbatim(service.pipeline, prompt, body.truncate) | body.of_inputs, [], sampling)
        for prompt in body.prompts
    ]
    texts = Texts(service, items, _answer(body, "text_completion"))
    texts.wants_logprobs = body.logprobs is not None
    texts.prompt_sizes = [*map(_most_tokens, body.prompts)]
    if body.echo:
        _check_echo(service, body)
        texts.echoed, texts.scores_prompt, texts.echoes_alone = body.prompts, body.scores_prompt, body.echoes_alone
    return await _answered(http, body, texts)


@router.get("/models")
async def models(http: Request) -> dict[str, Any]:
    names = [(service, name) for service in services_of(http) for name in (None, *service.adapters)]
    return {"object": "list", "data": [_model(service, adapter) for service, adapter in names]}


@router.get("/models/{name:path}")
async def model(name: str, http: Request) -> dict[str, Any]:
    service, adapter = services_of(http).asked(name)
    return _model(service, adapter.get("lora"))


class Texts:
    """The outputs of one HTTP request: of each of its inputs as many as were asked for."""

    def __init__(self, service: Service, items: list[GenerationInput], answer: Answer):
        self._service, self._items, self.answer = service, items, answer
        self._logprobs: dict[int, LogProbs] = {}
        self.wants_logprobs = self.names_ids = self.names_prompt = False
        self.scores_prompt = False  # have tokens that are echoed log-probabilities, too?
        self.echoes_alone = False  # is what follows the prompt left out?
        self.prompt_sizes: list[int] | None = None  # tokens of each input, at most; None: as many as the model takes
        self.echoed: list[str | list[int]] | None = None  # of each input what stands before its outputs
        self.num_best: int | None = None  # of each input so many of its outputs, the likeliest; None: all

    def check_logprobs(self) -> None:
        """Raises LimitError for more log-probabilities than are held for one answer."""
        longest, count = self._service.pipeline.capabilities.max_input_len, 0
        for each, size in zip(self._items, self.prompt_sizes or [longest] * len(self._items), strict=True):
            settings = each.sampling
            new = min(settings.get("max_new_tokens") or longest, longest) if self.wants_logprobs else 0
            of_prompt = settings.get("prompt_logprobs")
            scored = 0 if of_prompt is None else min(size, longest) * (1 + of_prompt)
            count += self._count * (scored + new * (1 + settings.get("top_logprobs", 0)))
        if count > MAX_LOGPROBS:
            raise LimitError(
                f"the answer may have {count:,} log-probabilities; {MAX_LOGPROBS:,} are given at most. Lower"
                " max_tokens, n or top_logprobs, or send fewer prompts at once.",
                settings=("max_new_tokens",),
            )

    async def deltas(self, *, final_only: bool = False) -> AsyncGenerator[tuple[int, TextDelta, DeltaLogprobs], None]:
        """Yields (choice, delta, its log-probabilities), of all inputs as they come; `final_only`: once they have
        ended."""
        async with aclosing(self._service.stream_all(self._items, final_only=final_only)) as deltas:
            async for number, delta in deltas:
                index = number * self._count + delta.index
                self.answer.usage.add(delta)
                if self.echoes_alone:
                    self.answer.usage.completion = 0
                # each is decoded, which takes long for many
                logprobs = (
                    await asyncio.to_thread(self._log_probabilities, index, delta)
                    if self.wants_logprobs
                    else DeltaLogprobs()
                )
                yield index, delta, logprobs

    async def whole(self) -> dict[str, Any]:
        outputs, logprobs, prompts = {}, {}, {}
        async with aclosing(self.deltas(final_only=True)) as deltas:
            async for index, delta, of_tokens in deltas:
                assert delta.output is not None  # it has ended
                outputs[index], logprobs[index] = self._shown(delta.output), joined(*of_tokens)
                prompts[index] = delta.update.prompt if delta.update else None
        places = enumerate(self._best(outputs))
        choices = [
            self.answer.choice(place, outputs[index], logprobs[index], self._echo(index))
            | self._of_prompt(prompts[index])
            for place, index in places
        ]
        return self.answer.whole(choices)

    async def chunks(self, options: StreamOptions) -> AsyncGenerator[dict[str, Any], None]:
        begun, usage = set(), self.answer.usage
        more = {"usage": None} if options.include_usage else {}
        async with aclosing(self.deltas()) as deltas:
            async for index, delta, logprobs in deltas:
                opening = [] if index in begun else self.answer.opening(index, self._echo(index), logprobs.prompt)
                begun.add(index)
                more = {"usage": usage.as_json()} if options.include_usage and options.continuous_usage_stats else more
                text, output = delta.text, delta.output
                if self.echoes_alone:
                    text, output = "", output and self._shown(output)
                for choice in (*opening, self.answer.part(index, text, logprobs.output, output)):
                    yield self.answer.chunk([choice]) | more
        if options.include_usage:
            yield self.answer.chunk([]) | {"usage": usage.as_json()}

    def _best(self, outputs: dict[int, Output]) -> list[int]:
        """Returns the choices to show, in order: of more candidates the ones whose tokens are likeliest on average."""
        if self.num_best is None:
            return sorted(outputs)
        mean = lambda i: outputs[i].cumulative_logprob / max(1, len(outputs[i].logprobs))  # noqa: E731
        rows = [range(n * self._count, (n + 1) * self._count) for n in range(len(self._items))]
        return [index for row in rows for index in sorted(row, key=mean, reverse=True)[: self.num_best]]

    @property
    def _count(self) -> int:
        """Outputs of each input."""
        return self._items[0].sampling.get("num_return_sequences") or 1

    def _echo(self, index: int) -> str:
        """Returns the prompt in words. It is decoded once there is an output: the engine has taken its length."""
        prompt = self.echoed[index // self._count] if self.echoed else ""
        if isinstance(prompt, str):
            return prompt
        assert self._service.pipeline.tokenizer is not None  # else it had been refused
        return self._service.pipeline.tokenizer.decode(prompt)

    def _shown(self, output: Output) -> Output:
        return replace(output, text="", finish_reason="length") if self.echoes_alone else output

    def _of_prompt(self, prompt: ScoredPrompt | None) -> dict[str, Any]:
        """Returns the field of vLLM's that a choice has where its prompt's log-probabilities were asked for."""
        if not self.names_prompt:
            return {}
        pipeline = self._service.pipeline
        named = prompt and named_scores(pipeline.tokenizer, prompt.within(pipeline.capabilities.vocab_size))
        return {"prompt_logprobs": named}

    def _log_probabilities(self, index: int, delta: TextDelta) -> DeltaLogprobs:
        pipeline, prompt = self._service.pipeline, None
        fresh = LogProbs(pipeline.tokenizer, self.answer.is_chat, self.names_ids, keeps_end=self.scores_prompt)
        own = self._logprobs.setdefault(index, fresh)
        if self.scores_prompt and delta.update is not None and delta.update.prompt is not None:
            tokens = delta.update.prompt.within(pipeline.capabilities.vocab_size)
            prompt = own.of_prompt(tokens, self._echo(index))
        return DeltaLogprobs(prompt, None if self.echoes_alone else own.added_by(delta))


async def _answered(http: Request, body: Sampling, texts: Texts) -> Response:
    texts.names_prompt = body.prompt_logprobs is not None
    if texts.wants_logprobs or texts.names_prompt:
        texts.check_logprobs()
    texts.names_ids = bool(body.return_tokens_as_token_ids)
    texts.num_best = body.outputs if (body.best_of or 1) > body.outputs and not body.searches else None
    if not body.stream:
        return await asyncio.to_thread(JSONResponse, await cancel_on_disconnect(http, texts.whole()))
    return await event_stream(http, texts.chunks(body.stream_options or StreamOptions()), last="[DONE]")


def _answer(body: Sampling, kind: str) -> Answer:
    return Answer(body.model, kind, body.request_id or uuid.uuid4().hex)


def _most_tokens(prompt: str | list[int]) -> int:
    """Returns how many tokens a prompt has, of a text its bytes: characters may be several."""
    return len(prompt.encode("utf-8", "surrogatepass")) if isinstance(prompt, str) else len(prompt)


def _check_echo(service: Service, body: CompletionBody) -> None:
    """Raises InputError for prompts of ids that cannot be decoded, and for scores of what no decoder reads."""
    if body.scores_prompt and service.pipeline.capabilities.has_text_encoder:
        said = (
            "echo with logprobs scores what a decoder reads, and this model reads the prompt by its encoder; leave one"
            " of them out."
        )
        raise InputError(said, settings=("echo",))
    if service.pipeline.tokenizer is None and any(isinstance(prompt, list) for prompt in body.prompts):
        said = "this engine has no tokenizer, so there is no text to echo; leave echo out."
        raise InputError(said, settings=("echo",))


def _model(service: Service, adapter: str | None) -> dict[str, Any]:
    """Returns what is said of a model, or of an adapter of it, which names it as its parent, as vLLM has it."""
    more: dict[str, Any] = {"max_model_len": service.pipeline.capabilities.max_input_len}
    more |= {} if adapter is None else {"parent": service.name}
    return {"id": adapter or service.name, "object": "model", "created": service.created, "owned_by": "vlm", **more}
