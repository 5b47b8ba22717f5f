"""Messages as they come from a client: each within its time, or what is wrong with it in its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from google.protobuf.message import DecodeError
from starlette.exceptions import HTTPException

from vlm.errors import InputError, LimitError
from vlm_app.server.http.json_bodies import MAX_VALUES
from vlm_app.server.kserve.grpc.wire import MAX_FIELDS, is_too_large
from vlm_app.server.tensors.wire import MAX_STRINGS

END = object()  # of a client's messages


async def next_message(
    messages: AsyncIterator[Any], seconds: float, *, busy: Callable[[], bool] = lambda: False
) -> Any:
    """Returns the next message, or END. Raises HTTPException (408) when none has come in time, unless `busy`."""
    task = asyncio.ensure_future(anext(aiter(messages), END))
    try:
        while not (await asyncio.wait((task,), timeout=seconds))[0]:
            if not busy():
                raise HTTPException(408, f"no whole request has come within {seconds:g} seconds; send it again")
        return task.result()
    finally:
        task.cancel()


def or_error(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Returns a function that gives an InputError for bytes that are no message, or one that is too large."""

    def read(message: bytes) -> Any:
        if is_too_large(message):
            return LimitError(
                f"a message may have {MAX_FIELDS:,} fields, its tensors' among them, and contents of {MAX_VALUES:,}"
                f" values or {MAX_STRINGS:,} of BYTES; send fewer, or raw_input_contents."
            )
        try:
            return deserialize(message)
        except DecodeError:
            return InputError("the message is no request of this call; send one of KServe's protocol.")

    return read
