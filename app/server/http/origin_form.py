"""Requests that name the whole address, as clients send them to a proxy."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

ABSOLUTE = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)


class OriginForm:
    """Reads `GET http://HOST/PATH` as `GET /PATH` of that host, whatever the header says (RFC 9112, 3.2.2)."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (absolute := ABSOLUTE.fullmatch(scope["raw_path"])):
            headers = [(name, value) for name, value in scope["headers"] if name != b"host"]
            raw_path = absolute[2] or b"/"
            path = unquote(raw_path.decode("ascii"))
            scope = {**scope, "path": path, "raw_path": raw_path, "headers": [(b"host", absolute[1]), *headers]}
        await self._app(scope, receive, send)
