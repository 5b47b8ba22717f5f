"""Who may ask, how much, and for how long: API key, body size, a client that has gone."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vlm_app.server.core.errors import response

T = TypeVar("T")
BODIES = 16  # of the largest size, held for all requests together
OPEN = ("/health", "/v2/health/live", "/v2/health/ready")


class ApiKey:
    """Lets in who sends `Authorization: Bearer KEY`, the scheme in any case; health may be asked by all."""

    def __init__(self, app: ASGIApp, key: str):
        self._app, self._key = app, key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN:
            scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(key.strip(), self._key):
                refusal = HTTPException(401, "the API key is missing or wrong; send Authorization: Bearer KEY")
                await response(refusal, scope["path"])(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BodyLimit:
    """Refuses bodies over `limit` bytes, announced or not, and any while all that are held are BODIES times as many."""

    def __init__(self, app: ASGIApp, limit: int):
        self._app, self._limit, self._size = app, limit, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._limit:
            await response(too_large(self._limit), scope["path"])(scope, receive, send)
            return
        total = 0

        async def counted() -> Message:
            nonlocal total
            message = await receive()
            total += (size := len(message.get("body", b"")))
            self._size += size
            if total > self._limit:
                raise too_large(self._limit)
            if self._size > BODIES * self._limit:
                raise HTTPException(429, "the server holds as many bodies as it may; ask again later")
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._size -= total


def too_large(limit: int) -> HTTPException:
    """Returns the refusal of a body of more bytes."""
    return HTTPException(413, f"the body is over {limit:,} bytes; send fewer or smaller texts, images or tensors")


async def cancel_on_disconnect(http: Request, work: Awaitable[T]) -> T:
    """Returns what `work` gives; it is cancelled when the client goes. Raises ClientDisconnect."""
    task, disconnection = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(http))
    try:
        await asyncio.wait((task, disconnection), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        for each in (task, disconnection):
            each.cancel()
        await asyncio.gather(task, disconnection, return_exceptions=True)


async def _disconnect(http: Request) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass
