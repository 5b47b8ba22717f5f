"""`X-Request-Id`: what an answer and a client's log have in common."""

from __future__ import annotations

import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = b"x-request-id"
_ALLOWED = re.compile(rb"[\x21-\x7e]{1,128}")


class RequestId:
    """Answers with the id that a request names, or with one of its own."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        header = dict(scope["headers"]).get(HEADER, b"")
        request_id = header.decode() if _ALLOWED.fullmatch(header) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER.decode()] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
