"""uvicorn with deadlines for clients, a limit on connections and an end that comes."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from vlm_app.server.core.config import ConnectionLimits
from vlm_app.server.http.connections import LOGGER, MAX_HEADER_BYTES, STOPPING, Connection, timed_connections
from vlm_app.server.http.lingering_close import LingeringCloses

TICK = 0.1  # seconds between two looks at the connections: uvicorn's
BACKLOG = 128  # connections accepted at once: each is a file
LAST_WORDS = 1  # seconds for who is cut off to see it


class Server(uvicorn.Server):
    """Ends `drain_seconds` after it was told to, at the latest; requests that run then get 503, or half an answer."""

    def __init__(
        self,
        app: ASGIApp,
        limits: ConnectionLimits,
        drain_seconds: float,
        on_drain: Callable[[], object] = lambda: None,
        *,
        on_start: Callable[[], object] = lambda: None,
    ):
        """`on_start` is called once it, and what else serves, can be asked; `on_drain` when it begins to end: what else
        serves ends in the same time."""
        settings = uvicorn.Config(
            app,
            http=partial(Connection, limits, LingeringCloses()),  # type: ignore[arg-type]
            ws="none",
            loop="asyncio",  # uvloop takes the pipe by which signals reach the watchdog
            log_level="warning",
            backlog=BACKLOG,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]
            timeout_graceful_shutdown=drain_seconds + LAST_WORDS,  # type: ignore[arg-type]
        )
        LOGGER.setLevel(logging.ERROR)  # bytes that are no request are not worth a line each
        super().__init__(settings)
        self._drain_seconds, self._on_drain, self._on_start = drain_seconds, on_drain, on_start
        self.interrupted = False  # by SIGINT

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Keeps signals from being raised again, as uvicorn would: who runs the server knows why it ended."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.interrupted |= sig == signal.SIGINT
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        self._tick()
        return await super().on_tick(counter)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_drain()
        end = asyncio.create_task(self._cut_off())
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()

    async def _cut_off(self) -> None:
        end = asyncio.get_running_loop().time() + self._drain_seconds
        while asyncio.get_running_loop().time() < end:
            self._tick()
            await asyncio.sleep(TICK)
        for connection in timed_connections(self.server_state.connections):
            connection.cut_off(STOPPING)

    def _tick(self) -> None:
        for connection in timed_connections(self.server_state.connections):
            connection.tick(TICK)
