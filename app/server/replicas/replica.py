"""A replica as its front sees it: a process, and what is asked of it."""

from __future__ import annotations

import asyncio
import io
import multiprocessing
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import aiohttp
from yarl import URL

from vlm.errors import EngineError, VlmError
from vlm.interrupts import blocked_interrupts
from vlm_app.server.replicas.process import READY, ReplicaJob, serve_replica

SECONDS_TO_END = 4  # once it is told to; no request is left then
AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # headers of aiohttp's own
FAILURES = (aiohttp.ClientError, TimeoutError, OSError)  # of who asks a replica that has gone


@dataclass(frozen=True)
class UpstreamRequest:
    """A request as it goes on to a replica."""

    method: str
    target: str  # path and query, as they came
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""


class Replica:
    """One process. It is ready from when it listens until it has ended."""

    def __init__(self, job: ReplicaJob):
        self.job, self.name = job, job.name
        self.is_ready = False
        self.restarts = 0
        self.trouble = "it is being loaded"  # why it is not ready
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._session: aiohttp.ClientSession | None = None

    def __str__(self) -> str:
        return f"replica {self.name} ({self.job.placement})"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    # --- its process ---
    def start(self) -> None:
        """Starts the process, which loads the models."""
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self._pipe, theirs = context.Pipe(duplex=False)
        process = context.Process(target=serve_replica, args=(self.job, theirs), name=f"vlm-{self}")
        with blocked_interrupts():
            process.start()
        self._process = process  # one that SIGTERM has kept from starting is not to be ended
        theirs.close()

    def receive(self) -> None:
        """Waits until it is ready. Raises the VlmError that it tells; EngineError where it has ended without one."""
        assert self._pipe is not None
        try:
            message = self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(message, VlmError):
            raise message
        assert message == READY

    async def received(self) -> None:
        """Does the same while other work goes on."""
        assert self._pipe is not None
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(number := self._pipe.fileno(), readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(number)
        self.receive()

    def stop(self) -> None:
        """Ends the process, after a while by force, and waits for it."""
        if self._process is not None:
            self._process.terminate()
            self._process.join(SECONDS_TO_END)
            self.kill()

    def kill(self) -> None:
        """Ends the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.join()

    def _ended(self) -> EngineError:
        assert self._process is not None
        self._process.join(SECONDS_TO_END)
        code = self._process.exitcode
        return EngineError(f"its process has ended ({f'signal {-code}' if code and code < 0 else f'exit code {code}'})")

    # --- what is asked of it ---
    def connect(self) -> None:
        """Makes it possible to ask, within the event loop that does."""
        connector = aiohttp.UnixConnector(path=str(self.job.socket), limit=0)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
            skip_auto_headers=AUTOMATIC,
        )

    async def disconnect(self) -> None:
        if self._session is not None:
            await self._session.close()

    def ask(self, request: UpstreamRequest) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Gives the answer once it has begun; who leaves it before its end aborts the request. Raises FAILURES."""
        assert self._session is not None
        path, _, query = request.target.partition("?")
        url = URL.build(scheme="http", host="replica", path=path, query_string=query, encoded=True)
        options: dict[str, Any] = {"data": io.BytesIO(request.body)} if request.body else {}  # sent in pieces
        return self._session.request(request.method, url, headers=request.headers, allow_redirects=False, **options)

    async def get(self, path: str, seconds: float | None = None) -> tuple[int, bytes]:
        """Returns the status and the body. `seconds`: that it may take; None: until the replica ends, by itself or
        because it hangs. Raises FAILURES."""
        async with asyncio.timeout(seconds), self.ask(UpstreamRequest("GET", path)) as answer:
            return answer.status, await answer.read()

    async def health(self, seconds: float | None = None) -> bytes | None:
        """Returns what it says of its health within so long, as `get` has it; None: it is not well."""
        if not self.is_ready:
            return None
        try:
            status, body = await self.get("/health", seconds)
        except FAILURES:
            return None
        return body if status == HTTPStatus.OK else None

    async def answers(self, seconds: float) -> bool:
        """Says whether it tells of its health within so long, well or not."""
        try:
            await self.get("/health", seconds)
        except FAILURES:
            return False
        return True
