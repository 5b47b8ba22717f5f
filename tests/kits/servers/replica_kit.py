"""Replicas without processes: what each answers is a function of the test, beneath a front as users meet it."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.kits.servers.server_kit import Served, listening
from vlm.api.pipeline import Pipeline
from vlm.errors import EngineError
from vlm_app.core.load_options import LoadOptions
from vlm_app.server.app import create_app
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.replicas.config import Placement
from vlm_app.server.replicas.front import create_front
from vlm_app.server.replicas.process import ReplicaJob
from vlm_app.server.replicas.replica import Replica
from vlm_app.server.replicas.run import replica_jobs
from vlm_app.server.replicas.supervisor import Supervisor
from vlm_app.server.repository.served_models import ServedModels


@dataclass(frozen=True)
class Asked:
    """A request as a replica gets it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


# yields the bytes of an answer; the connection ends after them
Answer = Callable[[Asked], AsyncIterator[bytes]]


CLOSE = "Connection: close\r\n"


def whole(body: bytes, status: int = 200, kind: str = "application/json", headers: str = "") -> bytes:
    """An answer of known length."""
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{CLOSE}{headers}\r\n"
    return head.encode() + body


STREAM = f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n{CLOSE}\r\n".encode()
END = b"0\r\n\r\n"


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


class FakeReplica(Replica):
    """One whose process is a function; `end` ends it, and it is started again."""

    def __init__(self, job: ReplicaJob, answer: Answer | None = None):
        """`answer` None: something else listens there."""
        super().__init__(job)
        self.answer, self.asked = answer, list[Asked]()
        self.aborted = 0  # requests that were left before their answer was over
        self._over = asyncio.Event()

    def start(self) -> None:
        self._over.clear()

    def receive(self) -> None: ...

    async def received(self) -> None:
        self.loop = asyncio.get_running_loop()
        if self.is_ready:
            await self._over.wait()
            raise EngineError("it was ended by a test")

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def end(self) -> None:
        """Ends it, as the front sees it."""
        self.loop.call_soon_threadsafe(self._over.set)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.asked.append(asked := Asked(method, target, headers, body))
            gone = asyncio.ensure_future(reader.read())
            sending = asyncio.ensure_future(self._send(asked, writer))
            await asyncio.wait((gone, sending), return_when=asyncio.FIRST_COMPLETED)
            self.aborted += not sending.done()
            sending.cancel()
            gone.cancel()

    async def _send(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        assert self.answer is not None
        async for part in self.answer(asked):
            writer.write(part)
            await writer.drain()


@dataclass
class Front:
    """Where a front listens, and what is behind it."""

    address: str
    replicas: list[FakeReplica]
    supervisor: Supervisor
    said: list[str] = field(default_factory=list)


@contextlib.contextmanager
def front_of(*answers: Answer, unresponsive_seconds: float = 30, **config) -> Iterator[Front]:
    """A front of replicas that answer so."""
    settings, said = ServerConfig(**config), list[str]()
    with contextlib.ExitStack() as stack:
        jobs = stack.enter_context(_jobs(settings, len(answers), said))
        replicas = [FakeReplica(job, answer) for job, answer in zip(jobs, answers, strict=True)]
        stack.enter_context(_sockets(replicas))
        supervisor = Supervisor(replicas, said.append, delays=(0, 0), unresponsive_seconds=unresponsive_seconds)
        supervisor.start()
        address = stack.enter_context(listening(create_front(supervisor, settings), settings))
        yield Front(address, replicas, supervisor, said)


@contextlib.contextmanager
def fronted(pipelines: dict[str, Pipeline], **config) -> Iterator[Served]:
    """What `serving` gives, by a front and one replica within this process."""
    settings = ServerConfig(**{"preprocess_workers": 0, **config})
    with contextlib.ExitStack() as stack:
        [job] = stack.enter_context(_jobs(settings, 1, []))
        app = create_app(pipelines, job.config)
        stack.enter_context(listening(app, job.config, job.socket))
        front = create_front(supervisor := Supervisor([FakeReplica(job)], print), settings)
        supervisor.start()
        yield Served(stack.enter_context(listening(front, settings)), app, front)


@contextlib.contextmanager
def _jobs(settings: ServerConfig, count: int, said: list[str]) -> Iterator[list[ReplicaJob]]:
    served, places = ServedModels({}, [], LoadOptions()), [Placement(("cpu",))] * count
    with tempfile.TemporaryDirectory() as folder:
        yield replica_jobs(served, places, settings, Path(folder), said.append)


@contextlib.contextmanager
def _sockets(replicas: list[FakeReplica]) -> Iterator[None]:
    """Lets the replicas listen, in a thread."""
    loop = asyncio.new_event_loop()

    async def listen() -> None:
        for replica in replicas:
            await asyncio.start_unix_server(replica.handle, replica.job.socket)

    loop.run_until_complete(listen())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
