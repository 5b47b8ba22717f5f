"""What stands before every gRPC call: the API key, and messages that cannot be read."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from starlette.exceptions import HTTPException

from vlm.errors import InputError
from vlm_app.server.grpc.failures import code_of, told

OPEN = ("ServerLive", "ServerReady")  # health may be asked by all
UNREADABLE = InputError("the message is no request of this call; send one of KServe's protocol.")
Handler = grpc.RpcMethodHandler | None  # None: there is no such call
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Handler]]


class ApiKey(grpc.aio.ServerInterceptor):
    """Lets in who sends `authorization: Bearer KEY` as metadata."""

    def __init__(self, key: str):
        self._key = key.encode()

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Handler:
        handler = await continuation(details)
        given = [value for name, value in details.invocation_metadata or () if name == "authorization"]
        if details.method.rpartition("/")[2] in OPEN or (len(given) == 1 and self._is_key(given[0])):
            return handler
        return handler and _refusal(handler)

    def _is_key(self, given: str | bytes) -> bool:
        scheme, _, key = (given.encode() if isinstance(given, str) else given).partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key, self._key)


class Readable(grpc.aio.ServerInterceptor):
    """Refuses messages that are none of a call's; a stream gets None in their place."""

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Handler:
        handler = await continuation(details)
        if handler is None:
            return None
        answer = handler.unary_unary and _unless_unreadable(handler.unary_unary)
        return handler._replace(request_deserializer=_or_none(handler.request_deserializer), unary_unary=answer)


def _refusal(handler: grpc.RpcMethodHandler) -> grpc.RpcMethodHandler:
    """Returns a handler of the same kind of call that refuses it."""
    error = HTTPException(401, "the API key is missing or wrong; send authorization: Bearer KEY")

    async def refuse(request: object, context: grpc.aio.ServicerContext) -> None:
        await context.abort(code_of(error), told(error))

    kind = grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_unary_rpc_method_handler
    return kind(refuse)


def _unless_unreadable(answer: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    async def checked(request: Any, context: grpc.aio.ServicerContext) -> Any:
        if request is None:
            await context.abort(code_of(UNREADABLE), told(UNREADABLE))
        return await answer(request, context)

    return checked


def _or_none(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(message: bytes) -> Any:
        try:
            return deserialize(message)
        except DecodeError:
            return None

    return read
