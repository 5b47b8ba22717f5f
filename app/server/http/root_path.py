"""The path under which a proxy shows the server."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send


class RootPath:
    """Tells of the path that a proxy puts before the server's, and takes it off where the proxy has not."""

    def __init__(self, app: ASGIApp, root_path: str):
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = scope["path"]
            own = path.removeprefix(self._root_path) if path.startswith(f"{self._root_path}/") else path
            scope = {**scope, "path": own, "root_path": self._root_path}
        await self._app(scope, receive, send)
