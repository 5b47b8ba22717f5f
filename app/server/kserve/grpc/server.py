"""The gRPC server beside the HTTP server: in its event loop, with its limits and its API key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc

from vlm.errors import InputError
from vlm_app.server.core.config import ServerConfig
from vlm_app.server.kserve.grpc.interceptors import ApiKey, Receiver

MAX_CONNECTIONS, MAX_CALLS, CALLS_OF_CONNECTION = 1024, 1024, 256
IDLE_SECONDS, HANDSHAKE_SECONDS, PING_SECONDS = 600, 10, 60


class GrpcServer:
    """Listens from `start` on until `stop`, both within the event loop."""

    def __init__(self, register: Callable[[grpc.aio.Server], None], config: ServerConfig):
        """`register` tells the server what answers calls. Raises InputError when it cannot listen there."""
        self._drain_seconds, self._draining = config.drain_seconds, asyncio.Event()
        doors = [*([] if config.api_key is None else [ApiKey(config.api_key)]), Receiver(self._draining)]
        self._server = grpc.aio.server(interceptors=doors, options=_options(config), maximum_concurrent_rpcs=MAX_CALLS)
        register(self._server)
        assert config.grpc_address is not None
        try:
            self.port = self._server.add_insecure_port(config.grpc_address)
        except RuntimeError:
            raise InputError(
                f"{config.grpc_address} cannot be listened at; give another --host or --grpc-port."
            ) from None
        self._stop_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._server.start()

    def drain(self) -> Awaitable[None]:
        """Takes no more calls. Ends when those that run have ended, or the time to drain is over."""
        self._draining.set()
        if self._stop_task is None:
            self._stop_task = asyncio.ensure_future(self._server.stop(self._drain_seconds))
        return self._stop_task


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # else two servers would share a port, and the requests
        ("grpc.max_receive_message_length", config.max_body_mb * 2**20),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", CALLS_OF_CONNECTION),
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ("grpc.max_connection_idle_ms", IDLE_SECONDS * 1000),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_SECONDS * 1000),
        ("grpc.keepalive_time_ms", PING_SECONDS * 1000),  # finds clients that have gone without a word
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
