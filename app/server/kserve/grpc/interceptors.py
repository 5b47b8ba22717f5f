"""What stands before every gRPC call: the API key, messages that do not come or cannot be read, the server's end."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from starlette.exceptions import HTTPException

from vlm.errors import EngineError, InputError
from vlm_app.server.http.connections import STOPPING
from vlm_app.server.kserve.grpc.failures import refusals
from vlm_app.server.kserve.grpc.receiving import END, next_message, or_error

OPEN = ("ServerLive", "ServerReady", "Check")  # health may be asked by all
RECEIVE_SECONDS = 60  # for a request to come whole
Handler = grpc.RpcMethodHandler | None  # None: there is no such call
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]


class ApiKey(grpc.aio.ServerInterceptor):
    """Lets in who sends `authorization: Bearer KEY` as metadata."""

    def __init__(self, key: str):
        self._key = key.encode()

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Handler:
        handler = await continuation(details)
        credentials = [value for name, value in details.invocation_metadata or () if name == "authorization"]
        if details.method.rpartition("/")[2] in OPEN or (len(credentials) == 1 and self._is_key(credentials[0])):
            return handler
        # as a stream's: nothing of the request is received
        return handler and grpc.stream_stream_rpc_method_handler(_refuse)

    def _is_key(self, credential: str | bytes) -> bool:
        scheme, _, key = (credential.encode() if isinstance(credential, str) else credential).partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key, self._key)


class Receiver(grpc.aio.ServerInterceptor):
    """Refuses requests that have not come in time or cannot be read; a stream gets an InputError for the latter.
    Responses may be messages, or their bytes."""

    def __init__(self, draining: asyncio.Event):
        """`draining`: streams end with the requests that they have had then."""
        self._draining = draining

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Handler:
        handler = await continuation(details)
        if handler is None:
            return None
        serve: Any = handler.stream_stream  # with write of its context, which gRPC's types do not know
        stream = serve and _until_drained(serve, self._draining)
        if handler.request_deserializer is None:  # bytes go on to a replica, which reads them
            return grpc.stream_stream_rpc_method_handler(stream) if stream else handler
        assert handler.response_serializer is not None
        read, write = or_error(handler.request_deserializer), _unless_bytes(handler.response_serializer)
        if stream:
            return grpc.stream_stream_rpc_method_handler(stream, read, write)
        assert handler.unary_unary is not None
        # as a stream's: else the time that a request takes to come is nobody's
        return grpc.stream_unary_rpc_method_handler(_received(handler.unary_unary), read, write)


def _received(answer: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def answered(messages: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> Any:
        async with refusals(context):
            request = await next_message(messages, RECEIVE_SECONDS)
            if request is END:
                raise InputError("the call has ended without a message; send one.")
            if isinstance(request, InputError):
                raise request
        return await answer(request, context)

    return answered


def _until_drained(serve: Callable[..., Awaitable[None]], draining: asyncio.Event) -> Callable[..., Awaitable[None]]:
    """Returns what serves a stream until its client's last request, or the last one that has come when the server is
    told to end: a client that says nothing would have it wait."""

    async def served(messages: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        async with refusals(context):
            await serve(requests := _MessagesBefore(draining, messages), context)
            if requests.are_cut_off:
                raise EngineError(f"{STOPPING}.")

    return served


class _MessagesBefore:
    """A client's messages, as far as they come before the server is told to end."""

    def __init__(self, end: asyncio.Event, messages: AsyncIterator[Any]):
        self._end, self._messages = end, aiter(messages)
        self.are_cut_off = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        message = asyncio.ensure_future(anext(self._messages, END))
        end = asyncio.ensure_future(self._end.wait())
        try:
            await asyncio.wait((message, end), return_when=asyncio.FIRST_COMPLETED)
            self.are_cut_off = not message.done()
            if self.are_cut_off or message.result() is END:
                raise StopAsyncIteration
            return message.result()
        finally:
            message.cancel()
            end.cancel()


def _unless_bytes(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """Returns a function for responses of which some, the large ones, are serialized already: gRPC calls it in the
    event loop, which answers everybody."""
    return lambda response: response if isinstance(response, bytes) else serialize(response)


async def _refuse(requests: object, context: grpc.aio.ServicerContext) -> None:
    async with refusals(context):
        raise HTTPException(401, "the API key is missing or wrong; send authorization: Bearer KEY")
