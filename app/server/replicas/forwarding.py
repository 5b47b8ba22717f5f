"""One request, to one replica; to another one where the first has gone before it has answered."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import aiohttp
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from vlm.errors import EngineError
from vlm_app.server.core import errors
from vlm_app.server.http.event_stream import event
from vlm_app.server.http.limits import cancel_on_disconnect
from vlm_app.server.replicas.affinity import affinity_keys
from vlm_app.server.replicas.replica import FAILURES, Replica, UpstreamRequest
from vlm_app.server.replicas.router import Router
from vlm_app.server.replicas.supervisor import Supervisor

ATTEMPTS = 2  # a request that ends one replica does not end all
LOST = "the replica that worked on the request has ended; send it again."
NONE_READY = "no replica is ready; ask again later."
# of one connection; of the body as the client sent it; of a page's site, which the front has looked at; a secret
NOT_SENT_ON = set(
    "connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect content-length origin"
    " sec-fetch-site authorization".split()
)
NOT_SENT_BACK = {"connection", "keep-alive", "transfer-encoding", "date", "x-request-id"}  # the front's own come
END_OF_EVENT = b"\n\n"
log = logging.getLogger("vlm.server")


class Forwarding:
    """An ASGI application that answers as the replicas do."""

    def __init__(self, supervisor: Supervisor, router: Router):
        self._supervisor, self._router = supervisor, router
        self.retried = 0  # requests that went to a second replica

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        request = await read_request(http)
        async with AsyncExitStack() as held:
            response = await cancel_on_disconnect(http, self._answer(request, held))
            await response(scope, receive, send)

    async def _answer(self, request: UpstreamRequest, held: AsyncExitStack) -> Response:
        """Returns the answer of the first replica that gives one; the connection and the place at the replica of one
        that is still to come are `held`. Generation may be done again: nothing is changed by it."""
        keys, tried, refusal = affinity_keys(request.body), set[str](), None
        while len(tried) < ATTEMPTS and (among := self.ready_but(tried)):
            async with AsyncExitStack() as attempt:
                name = attempt.enter_context(self._router.assigned(keys, among))
                self.retried += bool(tried)
                tried.add(name)
                response = await _asked(among[name], request, attempt)
                if response is not None and await _is_final(among[name], response):
                    held.push_async_exit(attempt.pop_all())
                    return response
                refusal = response or refusal
        if refusal is None:
            raise EngineError(LOST if tried else NONE_READY)
        return refusal

    def ready_but(self, tried: set[str]) -> dict[str, Replica]:
        """Returns the replicas that can be asked and have not been tried."""
        return {name: replica for name, replica in self._supervisor.ready.items() if name not in tried}


async def _asked(replica: Replica, request: UpstreamRequest, attempt: AsyncExitStack) -> Response | None:
    """Returns a whole answer, or a stream that has begun; None of a replica that has gone."""
    try:
        answer = await attempt.enter_async_context(replica.ask(request))
        if answer.content_type == "text/event-stream":
            response: Response = StreamingResponse(_events(answer, request.target), answer.status)
        else:
            response = Response(await answer.read(), answer.status)
    except FAILURES as error:
        log.debug("%s did not answer: %s", replica, error)
        return None
    response.raw_headers = _sent_back(answer.raw_headers)
    return response


async def read_request(http: Request) -> UpstreamRequest:
    """Returns a request with its whole body, whose limits the front has looked at."""
    raw_path, query = http.scope["raw_path"], http.scope["query_string"]
    target = (raw_path + (b"?" + query if query else b"")).decode("latin-1")
    headers = [(name, value) for name, value in http.headers.items() if name not in NOT_SENT_ON]
    return UpstreamRequest(http.scope["method"], target, headers, await http.body())


def _sent_back(headers: tuple[tuple[bytes, bytes], ...]) -> list[tuple[bytes, bytes]]:
    lower = [(name.lower(), value) for name, value in headers]
    return [(name, value) for name, value in lower if name.decode("latin-1") not in NOT_SENT_BACK]


async def _is_final(replica: Replica, response: Response) -> bool:
    """Says whether another replica would answer alike: one that is full, or whose engine has just broken, is no
    measure of the others."""
    if response.status_code == 429:
        return False
    return response.status_code != 503 or await replica.health() is not None


async def _events(answer: aiohttp.ClientResponse, target: str) -> AsyncGenerator[bytes, None]:
    """Yields whole events as they come; at the replica's end one that says so."""
    held = bytearray()
    try:
        async for piece in answer.content.iter_any():
            seen = max(0, len(held) - len(END_OF_EVENT) + 1)  # an event may be long, and is gone through once
            held += piece
            if (last := held.rfind(END_OF_EVENT, seen)) >= 0:
                end = last + len(END_OF_EVENT)
                yield bytes(held[:end])
                del held[:end]
        if held:
            yield bytes(held)
    except FAILURES:
        yield event(errors.body(EngineError(LOST), target)).encode()
