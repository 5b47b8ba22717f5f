"""A server of OpenAI's API that answers as a test says, well or badly, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from aiohttp import web

Answer = Callable[[web.Request, dict], Awaitable[web.StreamResponse]]


def chunk(text: str | None = None, finish: str | None = None, **more) -> bytes:
    """An event of /v1/completions."""
    choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": finish}]
    return f"data: {json.dumps({'choices': choices, **more})}\n\n".encode()


def usage(prompt: int, completion: int) -> bytes:
    return chunk(usage={"prompt_tokens": prompt, "completion_tokens": completion})


DONE = b"data: [DONE]\n\n"


async def stream(http: web.Request, parts: list[bytes], *, cut: bool = False) -> web.StreamResponse:
    """Answers with a stream of these bytes, a write each; `cut`: and drops the connection."""
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(http)
    for part in parts:
        await answer.write(part)
        await asyncio.sleep(0)
    if cut and http.transport is not None:
        http.transport.abort()
    return answer


async def well(http: web.Request, body: dict) -> web.StreamResponse:
    """Counts a token a word, and answers with as many as are asked for."""
    tokens = body["max_tokens"]
    return await stream(
        http, [*[chunk("a ")] * tokens, chunk("", "length"), usage(len(body["prompt"].split()), tokens), DONE]
    )


@dataclass
class FakeServer:
    """What it has, and what it was asked."""

    answer: Answer = well
    models: list[dict] = field(default_factory=lambda: [{"id": "fake"}])
    bodies: list[dict] = field(default_factory=list)
    headers: list[dict] = field(default_factory=list)
    listing: Callable[[], web.Response] | None = None  # in place of its models
    listed_with: list[str | None] = field(default_factory=list)  # what was to become of the connection
    url: str = ""

    async def _models(self, http: web.Request) -> web.StreamResponse:
        self.listed_with.append(http.headers.get("Connection"))
        return self.listing() if self.listing else web.json_response({"object": "list", "data": self.models})

    async def _asked(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        self.bodies.append(body)
        self.headers.append(dict(http.headers))
        return await self.answer(http, body)

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=2**26)
        app.add_routes([web.get("/v1/models", self._models), web.post("/v1/{what:.*}", self._asked)])
        runner = web.AppRunner(app, shutdown_timeout=0.1)  # of answers without an end
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0]
        self.url = f"http://{host}:{port}"
        try:
            yield
        finally:
            await runner.cleanup()

    @contextlib.contextmanager
    def listening(self) -> Iterator[FakeServer]:
        started, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

        async def run() -> None:
            async with self._running():
                started.set()
                await ended.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
        thread.start()
        started.wait()
        try:
            yield self
        finally:
            loop.call_soon_threadsafe(ended.set)
            thread.join()
            loop.close()
