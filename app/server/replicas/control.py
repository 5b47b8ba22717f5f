"""KServe's model repository and statistics, of all replicas at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vlm.errors import EngineError
from vlm_app.server.core.errors import Forbidden
from vlm_app.server.replicas.forwarding import NONE_READY, read_request
from vlm_app.server.replicas.replica import FAILURES, Replica, UpstreamRequest
from vlm_app.server.replicas.supervisor import Supervisor
from vlm_app.server.repository.control import merged_index
from vlm_app.server.repository.statistics import merged_statistics


class ModelControl:
    """Passes requests on to all replicas. One that is started again is told all changes."""

    def __init__(self, supervisor: Supervisor):
        self._supervisor, self._lock = supervisor, asyncio.Lock()
        self._changes: dict[str, UpstreamRequest] = {}  # of each model the last one

    async def change(self, http: Request) -> Response:
        return await self.changed(await read_request(http))

    async def index(self, http: Request) -> Response:
        return await self.common_index(await read_request(http))

    async def statistics(self, http: Request) -> Response:
        return await self.all_statistics(await read_request(http))

    async def changed(self, request: UpstreamRequest) -> Response:
        """Answers with the first refusal, or as the first replica does."""
        path = request.target.partition("?")[0].rpartition("/")[0]
        async with self._lock:
            answers = await self._answers(request)
            if (refusal := _refusal(answers)) is None:
                self._changes.pop(path, None)  # the order is that of the last changes
                self._changes[path] = request
        return refusal or answers[0]

    async def refuse_adapters(self, http: Request) -> Response:
        """Raises Forbidden: adapters of one replica would be none of the others'."""
        raise Forbidden("replicas have the adapters that they were started with; GET /v1/models lists them.")

    async def common_index(self, request: UpstreamRequest) -> Response:
        return await self._merged(request, merged_index)

    async def all_statistics(self, request: UpstreamRequest) -> Response:
        return await self._merged(request, merged_statistics)

    async def _merged(self, request: UpstreamRequest, merge: Callable[[list[Any]], Any]) -> Response:
        """Answers with the first refusal, or what is made of all replicas' answers."""
        answers = await self._answers(request)
        return _refusal(answers) or JSONResponse(merge([json.loads(bytes(answer.body)) for answer in answers]))

    async def _answers(self, request: UpstreamRequest) -> list[Response]:
        """Returns the answers of all replicas that are ready. Raises EngineError where there is none."""
        replicas = self._supervisor.ready.values()
        answers = await asyncio.gather(*(_told(replica, request) for replica in replicas))
        if not (found := [answer for answer in answers if answer is not None]):
            raise EngineError(NONE_READY)
        return found

    async def prepare(self, replica: Replica) -> None:
        """Tells a replica that has been started again what was changed before, and makes it ready."""
        async with self._lock:
            for request in self._changes.values():
                await _told(replica, request)
            replica.is_ready = True


def _refusal(answers: Sequence[Response]) -> Response | None:
    return next((answer for answer in answers if answer.status_code != HTTPStatus.OK), None)


async def _told(replica: Replica, request: UpstreamRequest) -> Response | None:
    """Returns a replica's answer; None of one that has gone, which is told when it is back."""
    plain = replace(request, headers=[pair for pair in request.headers if pair[0] != "accept-encoding"])
    try:
        async with replica.ask(plain) as answer:
            return Response(await answer.read(), answer.status, media_type=answer.headers.get("content-type"))
    except FAILURES:
        return None
