"""One request to an OpenAI-compatible server, its answer read as it comes."""

from __future__ import annotations

import asyncio
import errno
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlm_app.bench.serving.events import EventDecoder
from vlm_app.bench.serving.outcome import Outcome
from vlm_app.core.packages import library

if TYPE_CHECKING:
    import aiohttp

KEEPALIVE_SECONDS = 2  # less than any server's: none closes a connection on which a request is being sent
MAX_ERROR_BYTES = 2**16
DONE = "[DONE]"


def http_library() -> Any:
    """Returns aiohttp. Raises InputError, with the pip command, where it is not installed."""
    return library("aiohttp", "aiohttp", extra="serve", verb="vlm bench serve")


@dataclass(frozen=True)
class Client:
    """A server's address and what goes with every request."""

    session: aiohttp.ClientSession
    url: str  # up to /v1
    path: str

    async def send(self, body: bytes) -> Outcome:
        """Sends one request and reads its answer. Never raises for what the server does, or fails to do."""
        outcome = Outcome(sent=time.perf_counter())
        try:
            await self._exchange(body, outcome)
        except Exception as error:
            outcome.fail(*failure_of(error))
        return outcome

    async def _exchange(self, body: bytes, outcome: Outcome) -> None:
        async with self.session.post(self.url + self.path, data=body, allow_redirects=False) as answer:
            outcome.status = answer.status
            if answer.status != 200:
                outcome.fail(f"HTTP {answer.status}", message_of(await body_of(answer, MAX_ERROR_BYTES)))
            elif answer.content_type != "text/event-stream":
                outcome.fail("no event stream", f"the answer is {answer.content_type}")
            else:
                await _read_events(answer.content.iter_any(), outcome)


@asynccontextmanager
async def client_of(url: str, path: str, *, api_key: str | None, timeout: float) -> AsyncIterator[Client]:
    """Opens a client with as many connections as there are requests on their way."""
    aiohttp = http_library()
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    headers |= {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
        timeout=aiohttp.ClientTimeout(total=timeout),
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
    ) as session:
        yield Client(session, url, path)


async def body_of(answer: aiohttp.ClientResponse, most: int) -> bytes:
    """Returns an answer's body, of a larger one about so many bytes."""
    parts, size = [], 0
    async for part in answer.content.iter_any():
        parts.append(part)
        if (size := size + len(part)) >= most:
            break
    return b"".join(parts)


async def _read_events(data: AsyncIterator[bytes], outcome: Outcome) -> None:
    decoder, now = EventDecoder(), outcome.sent
    async for part in data:
        now = time.perf_counter()
        for event in decoder.feed(part):
            _note(event, now, outcome)
    for event in decoder.close():
        _note(event, now, outcome)
    if not outcome.is_whole:
        outcome.fail("cut off", "the answer ended without its last event")
    elif not outcome.chunks and outcome.completion_tokens:
        outcome.chunks.append(outcome.last)  # tokens without text, as after an end that is ignored
    elif not outcome.chunks:
        outcome.fail("no tokens", "the answer has none")


def _note(event: str, now: float, outcome: Outcome) -> None:
    """Notes what an event says. Raises ValueError for one that is no chunk."""
    if event == DONE:
        outcome.is_whole = True
        return
    chunk = json.loads(event)
    if not isinstance(chunk, dict):
        raise ValueError(f"an event is {event[:60]}")
    if "error" in chunk:
        outcome.fail("error in the stream", message_of(event.encode()))
    if usage := chunk.get("usage"):
        outcome.prompt_tokens, outcome.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
    for choice in chunk.get("choices") or ():
        outcome.last = now
        outcome.is_whole |= choice.get("finish_reason") is not None
        if _has_tokens(choice):
            outcome.chunks.append(now)


def _has_tokens(choice: dict[str, Any]) -> bool:
    """Says whether a choice is of tokens, which may have no text (yet), and not an opening that tells the role alone,
    or an end that tells the reason alone."""
    delta = choice.get("delta") or choice
    has_text = any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "text"))
    return has_text or ("role" not in delta and choice.get("finish_reason") is None)


def message_of(body: bytes) -> str:
    """Returns what an error says: OpenAI's, FastAPI's, TGI's or any text."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(text)
    except ValueError:
        return text
    for name in ("error", "message", "detail"):
        value = value.get(name, value) if isinstance(value, dict) else value
    return value if isinstance(value, str) else json.dumps(value)


def failure_of(error: Exception) -> tuple[str, str]:
    """Returns the kind of a failure, and what it says."""
    aiohttp = http_library()
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(error, OSError):
        if error.errno == errno.ECONNREFUSED:
            return "connection refused", "nothing listens there"
        return "no connection", error.strerror or str(error)
    if isinstance(error, asyncio.TimeoutError):
        return "timeout", "the answer took longer than --timeout"
    if isinstance(error, (aiohttp.ClientError, OSError)):
        return "connection lost", str(error) or type(error).__name__
    return "malformed stream", f"{type(error).__name__}: {error}"
