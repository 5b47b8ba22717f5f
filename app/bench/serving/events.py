"""Server-sent events out of the bytes of an answer, however these are split."""

from __future__ import annotations

import re

MAX_EVENT_BYTES = 2**20
LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a carriage return at the end may be half of one


class EventDecoder:
    """Collects the data of events. Comments, other fields and events without data are dropped."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[str]:
        """Returns the events that these bytes complete. Raises ValueError for one that is larger than any answer's."""
        *lines, self._rest = LINE_END.split(self._rest + data)
        events = [event for line in lines if (event := self._take(line)) is not None]
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise ValueError(f"an event is larger than {MAX_EVENT_BYTES:,} bytes")
        return events

    def close(self) -> list[str]:
        """Returns the event that was not followed by an empty line when the answer ended."""
        return self.feed(b"\n\n")

    def _take(self, line: bytes) -> str | None:
        """Returns the event that an empty line completes."""
        if line:
            field, _, value = line.partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            return None
        event, self._data = b"\n".join(self._data), []
        return event.decode("utf-8", "replace") or None
