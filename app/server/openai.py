"""OpenAI's protocol: /v1/chat/completions, /v1/completions, /v1/models."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from vlm.async_pipeline import Piece
from vlm.errors import LimitError
from vlm.limits import MAX_LOGPROBS
from vlm_app.server import errors
from vlm_app.server.asked import Asked
from vlm_app.server.json_bodies import JsonRoute
from vlm_app.server.limits import Streamed, unless_gone
from vlm_app.server.messages import read_chat, verbatim
from vlm_app.server.openai_answers import Answer, LogProbs
from vlm_app.server.openai_schema import ChatBody, CompletionBody, Sampling
from vlm_app.server.service import Service, Services

router = APIRouter(prefix="/v1", route_class=JsonRoute)
log = logging.getLogger("vlm.server")


@router.post("/chat/completions")
async def chat(body: ChatBody, http: Request) -> Response:
    """A conversation's next turn."""
    service = _services(http)[body.model]
    source, files = await asyncio.to_thread(read_chat, service.pipeline, body.messages)
    asked = Asked(source, files, body.sampling())
    wants_logprobs = bool(body.logprobs)
    return await _answered(http, body, Texts(service, [asked], Answer(body.model, "chat.completion"), wants_logprobs))


@router.post("/completions")
async def completions(body: CompletionBody, http: Request) -> Response:
    """What prompts are gone on with, or made of texts."""
    service = _services(http)[body.model]
    asked = [Asked(verbatim(service.pipeline, prompt), [], body.sampling()) for prompt in body.prompts]
    wants_logprobs = body.logprobs is not None
    return await _answered(http, body, Texts(service, asked, Answer(body.model, "text_completion"), wants_logprobs))


@router.get("/models")
async def models(http: Request) -> dict[str, Any]:
    return {"object": "list", "data": [_model(service) for service in _services(http)]}


@router.get("/models/{name:path}")
async def model(name: str, http: Request) -> dict[str, Any]:
    return _model(_services(http)[name])


class Texts:
    """The outputs of one HTTP request: of each of its inputs as many as were asked for."""

    def __init__(self, service: Service, asked: list[Asked], answer: Answer, wants_logprobs: bool):
        self._service, self._asked, self.answer = service, asked, answer
        self._logprobs: dict[int, LogProbs] = {}
        self._wants_logprobs = wants_logprobs
        if wants_logprobs:
            _check_logprobs(asked, service.pipeline.llm.max_seq_len)

    async def pieces(self) -> AsyncIterator[tuple[int, Piece, dict[str, Any] | None]]:
        """(choice, piece, its log-probabilities), of all inputs as they come."""
        async with aclosing(self._service.stream_all(self._asked)) as pieces:
            async for number, piece in pieces:
                index = number * (self._asked[number].sampling.get("num_return_sequences") or 1) + piece.index
                self.answer.usage.add(piece)
                # each is decoded, which takes long for many
                logprobs = (
                    await asyncio.to_thread(self._log_probabilities, index, piece) if self._wants_logprobs else None
                )
                yield index, piece, logprobs

    async def whole(self) -> dict[str, Any]:
        choices, logprobs = {}, {}
        async with aclosing(self.pieces()) as pieces:
            async for index, piece, new in pieces:
                logprobs[index] = _joined(logprobs.get(index), new)
                if piece.output is not None:
                    choices[index] = self.answer.choice(index, piece.output, logprobs[index])
        return self.answer.whole([choices[index] for index in sorted(choices)])

    async def chunks(self, with_usage: bool) -> AsyncIterator[dict[str, Any]]:
        opened = set()
        async with aclosing(self.pieces()) as pieces:
            async for index, piece, logprobs in pieces:
                opening = [] if index in opened else self.answer.opening(index)
                opened.add(index)
                for choice in (*opening, self.answer.part(index, piece.text, logprobs, piece.output)):
                    yield self.answer.chunk([choice])
        if with_usage:
            yield self.answer.chunk([], self.answer.usage.as_json())

    def _log_probabilities(self, index: int, piece: Piece) -> dict[str, Any]:
        fresh = LogProbs(self._service.pipeline.tokenizer, self.answer.is_chat)
        return self._logprobs.setdefault(index, fresh).of(piece)


async def _answered(http: Request, body: Sampling, texts: Texts) -> Response:
    if not body.stream:
        return await asyncio.to_thread(JSONResponse, await unless_gone(http, texts.whole()))
    chunks = texts.chunks(body.usage_wanted)
    try:
        # what is wrong with the request shows before the first chunk: its status can still say so
        first = await unless_gone(http, anext(chunks))
    except BaseException:
        await chunks.aclose()
        raise
    return Streamed(_events(first, chunks), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def _events(first: dict[str, Any], chunks: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Server-sent events; an error after the first is one of them."""
    try:
        async with aclosing(chunks):
            yield _event(first)
            async for chunk in chunks:
                yield _event(chunk)
    except Exception as error:
        log.error("a stream broke: %s", error, exc_info=error)
        yield _event(errors.body(error, "/v1"))
    yield "data: [DONE]\n\n"


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"


def _check_logprobs(asked: list[Asked], max_seq_len: int) -> None:
    """Raises LimitError for more log-probabilities than are held for one answer."""
    settings = [each.sampling for each in asked]
    tokens = [min(s.get("max_new_tokens") or max_seq_len, max_seq_len) for s in settings]
    alternatives = [s["num_return_sequences"] * (1 + s["top_logprobs"]) for s in settings]
    if (count := sum(t * a for t, a in zip(tokens, alternatives, strict=True))) > MAX_LOGPROBS:
        raise LimitError(
            f"the answer may have {count:,} log-probabilities; {MAX_LOGPROBS:,} are given at most. Lower max_tokens, n"
            " or top_logprobs."
        )


def _joined(known: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any] | None:
    """Log-probabilities of an output's pieces, list by list."""
    if known is None or new is None:
        return new
    return {key: known[key] + value if isinstance(value, list) else value for key, value in new.items()}


def _model(service: Service) -> dict[str, Any]:
    limits = {"max_model_len": service.pipeline.llm.max_seq_len}
    return {"id": service.name, "object": "model", "created": service.created, "owned_by": "vlm", **limits}


def _services(http: Request) -> Services:
    return http.app.state.services
