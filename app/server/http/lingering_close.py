"""The end of a connection whose client is told why: it has time to read that (nginx's and Apache's lingering close)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

SECONDS = 2.0  # for a client to read its answer, and to close
MOST = 128  # at once, each of which is a file; beyond them connections are closed as they are


@dataclass(frozen=True)
class LingeringCloses:
    """The connections of a server that have had their last answer.

    A connection that is closed while bytes still come is reset, and who cannot send any further reads no answer. So
    what comes is read, and nothing is done with it, until the client closes.
    """

    _under_way: set[_LingeringClose] = field(default_factory=set)

    def begin(self, transport: asyncio.Transport) -> bool:
        """Takes a connection over after its last bytes are written. Says False where there are too many of them, or the
        connection has no end of its own for each direction: whoever asks closes it."""
        if transport.is_closing() or len(self._under_way) >= MOST or not transport.can_write_eof():
            return False
        _LingeringClose(transport, self._under_way)
        return True


class _LingeringClose(asyncio.Protocol):
    """Reads until the client closes, or its time is over."""

    def __init__(self, transport: asyncio.Transport, under_way: set[_LingeringClose]):
        self._under_way = under_way
        self._under_way.add(self)
        self._end = asyncio.get_running_loop().call_later(SECONDS, transport.abort)
        transport.set_protocol(self)
        transport.write_eof()
        transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        self._under_way.discard(self)
