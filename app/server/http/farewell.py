"""The end of a connection whose client is told why: it has time to read that."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

SECONDS = 2.0  # for a client to read its answer, and to close
MOST = 128  # at once, each of which is a file; beyond them connections are closed as they are


@dataclass(frozen=True)
class Farewells:
    """The connections of a server that have had their last answer.

    A connection that is closed while bytes still come is reset, and who cannot send any further reads no answer. So
    what comes is read, and nothing is done with it, until the client closes.
    """

    _ending: set[_Farewell] = field(default_factory=set)

    def say(self, transport: asyncio.Transport) -> bool:
        """Takes a connection over after its last bytes are written. False: there are too many of them, or the
        connection has no end of its own for each direction; whoever asks closes it."""
        if transport.is_closing() or len(self._ending) >= MOST or not transport.can_write_eof():
            return False
        _Farewell(transport, self._ending)
        return True


class _Farewell(asyncio.Protocol):
    """Reads until the client closes, or its time is over."""

    def __init__(self, transport: asyncio.Transport, ending: set[_Farewell]):
        self._ending = ending
        self._ending.add(self)
        self._end = asyncio.get_running_loop().call_later(SECONDS, transport.abort)
        transport.set_protocol(self)
        transport.write_eof()
        transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end.cancel()
        self._ending.discard(self)
