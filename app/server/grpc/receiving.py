"""Messages as they come from a client: each within its time, and those that cannot be read as None."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.protobuf.message import DecodeError
from starlette.exceptions import HTTPException

END = object()  # of a client's messages


async def next_message(
    messages: AsyncIterator[Any], seconds: float, *, busy: Callable[[], bool] = lambda: False
) -> Any:
    """Returns the next message, or END. Raises HTTPException (408) when none has come in time, unless `busy`."""
    arriving = asyncio.ensure_future(anext(aiter(messages), END))
    try:
        while not (await asyncio.wait((arriving,), timeout=seconds))[0]:
            if not busy():
                raise HTTPException(408, f"no whole request has come within {seconds:g} seconds; send it again")
        return arriving.result()
    finally:
        arriving.cancel()


def or_none(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Returns a function that gives None for bytes that are no message."""

    def read(message: bytes) -> Any:
        try:
            return deserialize(message)
        except DecodeError:
            return None

    return read
