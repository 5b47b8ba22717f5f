"""Calls over gRPC whose client goes: what becomes of them, and of the replica's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from vlm.errors import InputError
from vlm_app.server.kserve.grpc.failures import refusals
from vlm_app.server.replicas.grpc_forwarding import GrpcForwarding
from vlm_app.server.replicas.router import Router


class Stream:
    """A replica's stream, whose responses never end."""

    def __init__(self):
        self.cancelled = False

    async def __aiter__(self):
        while True:
            yield b"a response"

    def cancel(self) -> None:
        self.cancelled = True


def test_a_stream_whose_client_goes_amid_a_response_ends_at_the_replica(monkeypatch, tmp_path):
    stream, writing = Stream(), asyncio.Event()

    async def ready() -> None: ...

    async def write(response: bytes) -> None:
        writing.set()
        await asyncio.Event().wait()  # as one that reads no further

    channel = SimpleNamespace(channel_ready=ready, stream_stream=lambda path: lambda requests, metadata: stream)
    monkeypatch.setattr(grpc.aio, "insecure_channel", lambda address, options: channel)
    job = SimpleNamespace(config=SimpleNamespace(grpc_socket=tmp_path / "0.grpc"))
    replica: Any = SimpleNamespace(name="0", job=job)
    ready_replicas: Any = SimpleNamespace(ready_but=lambda tried: {"0": replica})
    context: Any = SimpleNamespace(write=write, invocation_metadata=lambda: ())
    forwarding = GrpcForwarding(ready_replicas, router := Router(["0"]))

    async def left() -> None:
        await forwarding.connect(replica)
        serve: Any = forwarding.handlers()["ModelStreamInfer"].stream_stream
        task = asyncio.create_task(serve(None, context))
        await writing.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(left())
    assert stream.cancelled and router.outstanding == {"0": 0}


@pytest.mark.parametrize("raised", [InputError("a sentence."), grpc.aio.InternalError("a response cannot be written")])
def test_a_call_that_is_over_is_no_error_of_the_servers(raised, caplog):
    async def abort(code: grpc.StatusCode, details: str) -> None:
        raise grpc.aio.InternalError("nor can a status")

    async def refused() -> None:
        context: Any = SimpleNamespace(abort=abort)
        async with refusals(context):
            raise raised

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(refused())
    assert not caplog.records
