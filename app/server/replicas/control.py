"""KServe's model repository extension, of all replicas at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from vlm.errors import EngineError
from vlm_app.server.replicas.forwarding import NONE_READY, read_request
from vlm_app.server.replicas.replica import FAILURES, Replica, UpstreamRequest
from vlm_app.server.replicas.supervisor import Supervisor

CHANGES = ("load", "unload")  # how the paths end that change what is served


class ModelControl:
    """Passes requests on to all replicas. One that is started again is told all changes."""

    def __init__(self, supervisor: Supervisor):
        self._supervisor, self._lock = supervisor, asyncio.Lock()
        self._changes: dict[str, UpstreamRequest] = {}  # of each model the last one

    async def tell(self, http: Request) -> Response:
        """Answers with the first refusal, or as the first replica does."""
        request = await read_request(http)
        path, _, verb = http.url.path.rpartition("/")
        async with self._lock:
            replicas = self._supervisor.ready.values()
            answers = await asyncio.gather(*(_told(replica, request) for replica in replicas))
            responses = [answer for answer in answers if answer is not None]
            if not responses:
                raise EngineError(NONE_READY)
            refusal = next((response for response in responses if response.status_code != HTTPStatus.OK), None)
            if refusal is None and verb in CHANGES:
                self._changes.pop(path, None)  # the order is that of the last changes
                self._changes[path] = request
        return refusal or responses[0]

    async def prepare(self, replica: Replica) -> None:
        """Tells a replica that has been started again what was changed before, and makes it ready."""
        async with self._lock:
            for request in self._changes.values():
                await _told(replica, request)
            replica.is_ready = True


async def _told(replica: Replica, request: UpstreamRequest) -> Response | None:
    """Returns a replica's answer; None of one that has gone, which is told when it is back."""
    plain = replace(request, headers=[pair for pair in request.headers if pair[0] != "accept-encoding"])
    try:
        async with replica.ask(plain) as answer:
            return Response(await answer.read(), answer.status, media_type=answer.headers.get("content-type"))
    except FAILURES:
        return None
