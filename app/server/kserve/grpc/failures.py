"""What goes wrong -> a gRPC status with the same one sentence as over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import grpc

from vlm_app.server.core.errors import sentence, status_of

log = logging.getLogger("vlm")
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


def code_of(error: Exception) -> grpc.StatusCode:
    return CODES.get(status_of(error), grpc.StatusCode.INTERNAL)


def error_text(error: Exception) -> str:
    """Returns the sentence for the client; what it cannot mend is written to the log."""
    if code_of(error) is grpc.StatusCode.INTERNAL:
        log.error("a gRPC request failed: %s", error, exc_info=error)
    return sentence(error, "/v2")  # the same protocol


@asynccontextmanager
async def refusals(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    """Ends the call with a status for what is raised."""
    with cancelled_when_over():
        try:
            yield
        except (asyncio.CancelledError, grpc.aio.AbortError, grpc.aio.UsageError, grpc.aio.InternalError):
            raise
        except Exception as error:
            await context.abort(code_of(error), error_text(error))


@contextmanager
def cancelled_when_over() -> Iterator[None]:
    """Has a call end as one that is cancelled where gRPC cannot write to it any more: its client has gone, or its
    deadline is over."""
    try:
        yield
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None
