"""KServe's protocol over gRPC by replicas: a call goes on, as the bytes that came, to one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc
from tritonclient.grpc import service_pb2 as pb

from vlm.errors import EngineError
from vlm_app.server.kserve.grpc.failures import refusals
from vlm_app.server.replicas.forwarding import ATTEMPTS, LOST, NONE_READY, Forwarding
from vlm_app.server.replicas.replica import Replica
from vlm_app.server.replicas.router import Router

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),  # to a replica that is started again
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
]
NOT_SENT_ON = ("authorization", "user-agent")  # and what is gRPC's own
CONNECT_SECONDS = 30
Context = grpc.aio.ServicerContext


class GrpcForwarding:
    """Makes calls at replicas. A stream is one replica's, from its first request to its last."""

    def __init__(self, forwarding: Forwarding, router: Router):
        self._forwarding, self._router = forwarding, router
        self._channels: dict[str, grpc.aio.Channel] = {}  # by the replica's name

    async def connect(self, replica: Replica) -> None:
        """Waits until a replica, which has been started, takes calls. Raises EngineError where it does not."""
        socket = replica.job.config.grpc_socket
        if replica.name not in self._channels:
            self._channels[replica.name] = grpc.aio.insecure_channel(f"unix:{socket}", OPTIONS)
        try:
            await asyncio.wait_for(self._channels[replica.name].channel_ready(), CONNECT_SECONDS)
        except TimeoutError:
            raise EngineError("it takes no calls over gRPC") from None

    async def close(self) -> None:
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    def handlers(self) -> dict[str, grpc.RpcMethodHandler]:
        """Returns what answers each call of the service, by its name."""
        return {method.name: self._handler(method.name, streams=method.client_streaming) for method in SERVICE.methods}

    def _handler(self, name: str, *, streams: bool) -> grpc.RpcMethodHandler:
        if streams:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, name))
        return grpc.unary_unary_rpc_method_handler(partial(self._answer, name), bytes, bytes)

    async def _answer(self, name: str, request: bytes, context: Context) -> bytes:
        """Returns the first replica's answer, or another's where the first has gone or is full."""
        tried, refusal = set[str](), None
        async with _passed_on(context):
            while len(tried) < ATTEMPTS and (among := self._forwarding.ready_but(tried)):
                with self._router.assigned((), among) as chosen:
                    self._forwarding.retried += bool(tried)
                    tried.add(chosen)
                    try:
                        call = self._channels[chosen].unary_unary(_path(name))
                        return await call(request, metadata=_metadata(context), timeout=context.time_remaining())
                    except grpc.aio.AioRpcError as error:
                        if await _has_gone(among[chosen], error):
                            continue
                        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:  # one that is full
                            raise
                        refusal = error
            raise refusal or EngineError(LOST if tried else NONE_READY)

    async def _stream(self, name: str, requests: AsyncIterator[bytes], context: Context) -> None:
        async with _passed_on(context):
            if not (among := self._forwarding.ready_but(set())):
                raise EngineError(NONE_READY)
            with self._router.assigned((), among) as chosen:
                call = self._channels[chosen].stream_stream(_path(name))(requests, metadata=_metadata(context))
                try:
                    async for response in call:
                        await context.write(response)
                except grpc.aio.AioRpcError as error:
                    if not await _has_gone(among[chosen], error):
                        raise
                    raise EngineError(LOST) from None
                finally:
                    call.cancel()  # a client that goes while a response is on its way to it leaves the call as it is


async def _has_gone(replica: Replica, error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.UNAVAILABLE and await replica.health() is None


@asynccontextmanager
async def _passed_on(context: Context) -> AsyncIterator[None]:
    """Ends the call as a replica has ended it, or with a status for what is raised here."""
    async with refusals(context):
        try:
            yield
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "")


def _path(name: str) -> str:
    return f"/{SERVICE.full_name}/{name}"


def _metadata(context: Context) -> list[tuple[str, str | bytes]]:
    sent = context.invocation_metadata() or ()
    return [(key, value) for key, value in sent if key not in NOT_SENT_ON and not key.startswith("grpc-")]
