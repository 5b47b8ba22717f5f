"""A client's connection: how slowly it may ask and read, how much it may send beyond its body, who goes first when
there are too many."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import struct
import sys
from collections.abc import Iterable
from enum import IntEnum
from http import HTTPStatus
from typing import Any

import h11
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from vlm_app.server.core.config import ConnectionLimits
from vlm_app.server.core.errors import response
from vlm_app.server.http.lingering_close import LingeringCloses

MAX_HEADER_BYTES = 16 * 2**10  # of the request line and all headers; a name or a value has no limit of its own
END_OF_HEAD = re.compile(rb"\n\r?\n")  # as h11 has it
MIN_RATE = 64 * 2**10  # bytes a second, once the time that a transfer has anyway is over
MAX_FRAMING = 64 * 2**10  # bytes of a chunked body that are none of its own, before they are compared with these
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: for no second
LOGGER = logging.getLogger("uvicorn.error").getChild("connection")

UNREADABLE = "this is no request that can be read; send HTTP/1.1"
TOO_LONG = (
    f"the request line and the headers are over {MAX_HEADER_BYTES:,} bytes; send a shorter address or fewer headers"
)
CHOPPED = "the body comes in chunks of a few bytes; send larger ones, or Content-Length"
LATE = "the request did not come in time; send it again, faster"
FULL = "the server holds as many connections as it may; ask again later"
STOPPING = "the server is stopping; ask again later"


class Stage(IntEnum):
    """What a connection waits for; who waits for less goes first when there are too many."""

    IDLE = 0  # another request, perhaps
    HEADERS = 1
    BODY = 2
    ANSWER = 3  # ours


class Pace:
    """The time that a transfer may take: so many seconds, and one more for every MIN_RATE bytes that have moved."""

    def __init__(self, seconds: float):
        self._seconds = seconds

    def moved(self, count: int) -> None:
        self._seconds += count / MIN_RATE

    def is_over(self, seconds: float) -> bool:
        """Takes off the seconds that have passed."""
        self._seconds -= seconds
        return self._seconds < 0


class Connection(H11Protocol):
    """uvicorn's, with deadlines. They are counted in ticks of the event loop, so that no client pays for the time in
    which the server itself was busy."""

    def __init__(self, limits: ConnectionLimits, lingering_closes: LingeringCloses, **uvicorns: Any):
        super().__init__(**uvicorns)
        self._lingering_closes = lingering_closes
        self.logger = LOGGER
        self.app = self._until_gone(self.app)
        self._limits = limits
        self._line = b""  # how the request line of what is being read begins
        self._framing = 0  # bytes of the present body that are none of its own
        self._waiting_for: tuple[object, ...] = ()
        self._reading = self._writing = Pace(limits.body_seconds)
        self._unsent = 0
        self.since = self.loop.time()  # it waits

    @property
    def stage(self) -> Stage:
        if self.conn.their_state is h11.SEND_BODY:
            return Stage.BODY
        if self.conn.their_state is h11.IDLE:
            return Stage.HEADERS if self._line or self.cycle is None else Stage.IDLE
        return Stage.ANSWER

    # --- what comes in ---
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._limits.max_connections:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Passes it on in slices, for h11 looks at the length of a chunked body's lines only when they go on after
        what it was given."""
        for begin in range(0, len(data), MAX_HEADER_BYTES):
            if not self.transport.is_closing():
                self._receive(data[begin : begin + MAX_HEADER_BYTES])

    def _receive(self, data: bytes) -> None:
        if self.stage < Stage.BODY:
            self._line = (self._line + data)[:64]
        if self.stage is not Stage.BODY:
            super().data_received(data)
            return
        length = len(self.cycle.body)
        super().data_received(data)
        if self.stage is Stage.BODY and not self.cycle.response_complete:
            body = len(self.cycle.body) - length
            self._reading.moved(len(data))
            self._framing += len(data) - body - body // 8
            if self._framing > MAX_FRAMING:
                self.refuse(400, CHOPPED)

    def handle_events(self) -> None:
        """Lets h11 see a request whose head is short enough; it counts only those that have not come whole."""
        if self.stage < Stage.BODY and _has_long_head(self.conn.trailing_data[0]):
            self.refuse(431, TOO_LONG)
        else:
            super().handle_events()

    def on_response_complete(self) -> None:
        self._line, self._framing, self.since = self.conn.trailing_data[0][:64], 0, self.loop.time()
        super().on_response_complete()

    # --- what goes out ---
    def _until_gone(self, app: ASGIApp) -> ASGIApp:
        """Returns the application as one that writes nothing to a client that has gone, which asyncio would log, and
        that hears of it with what it writes next."""

        async def served(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_unless_gone(message: Message) -> None:
                if self.transport.is_closing():
                    self._leave()
                await send(message)

            await app(scope, receive, send_unless_gone)

        return served

    # --- the deadlines ---
    def tick(self, seconds: float) -> None:
        """Ends the connection when the client has used up its time; called again and again."""
        if self._reads_too_slowly(seconds):
            self._reset()
        elif not self.transport.is_closing() and self._asks_too_slowly(seconds):
            self.refuse(408, LATE)

    def _asks_too_slowly(self, seconds: float) -> bool:
        stage = self.stage
        waiting_for = (stage, self.cycle, self.cycle is not None and self.cycle.response_complete)
        if waiting_for != self._waiting_for:
            limits = self._limits
            self._waiting_for = waiting_for
            self._reading = Pace(limits.body_seconds if stage is Stage.BODY else limits.header_seconds)
        return stage in (Stage.HEADERS, Stage.BODY) and self._reading.is_over(seconds)

    def _reads_too_slowly(self, seconds: float) -> bool:
        unsent, before = self.transport.get_write_buffer_size(), self._unsent
        self._unsent = unsent
        if not unsent or not before:
            self._writing = Pace(self._limits.body_seconds)
            return False
        self._writing.moved(max(0, before - unsent))
        return self._writing.is_over(seconds)

    # --- the ways to end ---
    def refuse(self, status: int, sentence: str) -> None:
        """Answers what has no answer yet, and ends the connection once that is read."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.write(answer(status, sentence, self._line))
        if self._lingering_closes.begin(self.transport):
            self._unset_keepalive_if_required()
            self.connection_lost(ConnectionAbortedError())  # as far as anybody here is concerned
        else:
            self._leave()
            self.transport.close()

    def _reset(self) -> None:
        """Drops what is unsent, the kernel's share too."""
        with contextlib.suppress(OSError):  # it may have gone just now
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        self.transport.abort()

    def shutdown(self) -> None:
        """Ends the connection as uvicorn does; one that it cannot end so is cut off later."""
        with contextlib.suppress(h11.LocalProtocolError):
            super().shutdown()

    def cut_off(self, sentence: str) -> None:
        """Ends it now; who may have asked, or has been promised an answer, gets a sentence. Half an answer ends so that
        nobody takes it for a whole one."""
        if self.stage is Stage.IDLE:
            self.transport.abort()
        elif self.stage is Stage.HEADERS:
            self.refuse(503, sentence)
        elif self.cycle.response_started:
            self._leave()
            self.transport.abort()
        else:
            self.refuse(503, sentence)

    def send_400_response(self, msg: str) -> None:
        """Answers where uvicorn has caught what h11 says of a request."""
        status = getattr(sys.exc_info()[1], "error_status_hint", 400)
        self.refuse(status, TOO_LONG if status == 431 else UNREADABLE)

    def _leave(self) -> None:
        """Lets the work for the request see its client gone, at once."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    def _make_room(self) -> None:
        """Ends the connection that has waited longest of those that the server does no work for, else this one."""
        others = [
            each for each in timed_connections(self.connections) if each is not self and not each.transport.is_closing()
        ]
        idle = [each for each in others if each.stage is not Stage.ANSWER]
        if idle:
            min(idle, key=lambda each: (each.stage, each.since)).cut_off(FULL)
        else:
            self.refuse(503, FULL)

    def _unsupported_upgrade_warning(self) -> None:
        """Says nothing: who offers HTTP/2 as an upgrade (Java's client does) is served without it."""


def timed_connections(connections: Iterable[object]) -> list[Connection]:
    """Returns the connections of a server as what they are: uvicorn knows only that they are of some protocol."""
    return [each for each in connections if isinstance(each, Connection)]


def _has_long_head(received: bytes) -> bool:
    """Says whether a request's line and headers, with the empty line after them, are over MAX_HEADER_BYTES."""
    return len(received) > MAX_HEADER_BYTES and END_OF_HEAD.search(received, 0, MAX_HEADER_BYTES) is None


def answer(status: int, sentence: str, line: bytes) -> bytes:
    """Returns a whole answer, in its protocol's shape, to the request that begins with this line; it ends the
    connection."""
    path = line.partition(b" ")[2].decode("latin-1")
    refusal = response(HTTPException(status, sentence), path)
    headers = b"".join(b"%b: %b\r\n" % header for header in [*refusal.raw_headers, (b"connection", b"close")])
    return b"HTTP/1.1 %d %b\r\n%b\r\n%b" % (status, HTTPStatus(status).phrase.encode(), headers, refusal.body)
