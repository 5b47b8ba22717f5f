"""Bodies that come compressed, and answers that go so."""

from __future__ import annotations

import asyncio
import zlib

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vlm_app.server.core.errors import response
from vlm_app.server.http.limits import too_large

CODINGS = ("gzip", "x-gzip", "deflate")
GZIP_OR_ZLIB = zlib.MAX_WBITS | 32  # as the data's first bytes say
PIECE = 2**20  # bytes that are decoded at once
MAX_MEMBERS = 4096  # gzip files that follow one another in a body: each takes a turn, though nothing may come of it


LEAST_BYTES = 1024  # of an answer that is worth it


class AnswerCoding(GZipMiddleware):
    """Compresses answers for those who take it; of KServe's API those of inference alone: Triton's asyncio client asks
    for it by its library's default and reads all others as they come."""

    def __init__(self, app: ASGIApp):
        super().__init__(app, minimum_size=LEAST_BYTES, compresslevel=1)  # the loop's time is dearer than bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.startswith("/v2") and not path.endswith("/infer"):
            await self.app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class ContentDecoding:
    """Decodes bodies that say in Content-Encoding how they are coded. `limit`: the most bytes as sent; how many they
    become is for who reads them to count."""

    def __init__(self, app: ASGIApp, limit: int):
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        coding = Headers(scope=scope).get("content-encoding", "").strip().lower() if scope["type"] == "http" else ""
        if coding in ("", "identity"):
            await self._app(scope, receive, send)
        elif coding not in CODINGS:
            advice = {"Accept-Encoding": "gzip, deflate"}
            reason = f"the body is coded as {coding[:80]!r}; send it as gzip, deflate or as it is"
            refusal = HTTPException(415, reason, advice)
            await response(refusal, scope["path"])(scope, receive, send)
        else:
            without = (b"content-encoding", b"content-length")
            headers = [(name, value) for name, value in scope["headers"] if name not in without]
            await self._app({**scope, "headers": headers}, Decoded(receive, self._limit), send)


class Decoded:
    """Decodes what is received, piece by piece. Raises HTTPException where it cannot be."""

    def __init__(self, receive: Receive, limit: int):
        self._receive, self._limit = receive, limit
        self._decoder = zlib.decompressobj(GZIP_OR_ZLIB)
        self._input, self._size, self._members = b"", 0, 1
        self._more_to_decode, self._more_to_receive = False, True

    async def __call__(self) -> Message:
        if self._more_to_decode:
            await asyncio.sleep(0)  # others have their turn between two pieces
        else:
            message = await self._receive()
            if message["type"] != "http.request" or not self._more_to_receive:
                return message
            self._take(message)
        return {"type": "http.request", "body": self._decode(), "more_body": self._more}

    @property
    def _more(self) -> bool:
        return self._more_to_decode or self._more_to_receive

    def _take(self, message: Message) -> None:
        self._input, self._more_to_receive = message.get("body", b""), message.get("more_body", False)
        self._size += len(self._input)
        if self._size > self._limit:
            raise too_large(self._limit)

    def _decode(self) -> bytes:
        try:
            body = self._decoder.decompress(self._input, PIECE)
        except zlib.error:
            raise HTTPException(400, "the body is not coded as its Content-Encoding says") from None
        self._input = self._decoder.unconsumed_tail
        if self._decoder.unused_data:  # gzip files may follow one another
            self._input, self._decoder = self._decoder.unused_data, zlib.decompressobj(GZIP_OR_ZLIB)
            self._members += 1
            if self._members > MAX_MEMBERS:
                raise HTTPException(400, f"the body is of over {MAX_MEMBERS:,} gzip files; send it as one")
        self._more_to_decode = bool(self._input) or len(body) == PIECE
        if self._size and not self._more and not self._decoder.eof:
            raise HTTPException(400, "the body ends before what its Content-Encoding says does")
        return body
