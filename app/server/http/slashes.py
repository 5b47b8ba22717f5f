"""A slash at a path's end means nothing."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class WithoutSlash:
    """Reads a path that ends in slashes as the same without. To send its client there instead takes the address by
    which it came, and a proxy shows another one."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        await self._app(scope, receive, send)
