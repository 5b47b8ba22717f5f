"""Answers as server-sent events."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from vlm_app.server.core import errors
from vlm_app.server.http.limits import cancel_on_disconnect

log = logging.getLogger("vlm.server")
Item = dict[str, Any] | str  # or its JSON
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # nginx passes each event on as it comes
# characters that JSON leaves as they are, and that end a line to many readers of events
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


class EventStream(StreamingResponse):
    """Ends its source at once when the client goes."""

    def __init__(self, events: AsyncGenerator[str, None]):
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


async def event_stream(http: Request, items: AsyncGenerator[Item, None], last: str = "") -> EventStream:
    """Returns a response of an event an item, and `last` at its end.

    Raises what comes before the first item: the status can still say what is wrong with the request.
    """
    try:
        first = await cancel_on_disconnect(http, anext(items))
    except BaseException:
        await items.aclose()
        raise
    return EventStream(_events(first, items, http.url.path, last))


async def _events(first: Item, items: AsyncGenerator[Item, None], path: str, last: str) -> AsyncGenerator[str, None]:
    """Yields an error after the first item as an event, too."""
    try:
        async with aclosing(items):
            yield event(first)
            async for item in items:
                yield event(item)
    except Exception as error:
        if errors.status_of(error) == 500:
            log.error("a stream broke: %s", error, exc_info=error)
        yield event(errors.body(error, path))
    if last:
        yield f"data: {last}\n\n"


def event(item: Item) -> str:
    """Returns an event that holds this JSON."""
    content = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    return f"data: {content if content.isascii() else content.translate(_LINE_ENDS)}\n\n"
